// The two files of a layer that a worker makes in its private directory.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "erofs/writer.h"
#include "image/import_messages.h"
#include "sys/fd.h"

namespace dsec::image {

struct LayerFilesInWork {
  sys::Fd metadata;
  sys::Fd data;
  std::unique_ptr<erofs::Writer> writer;

  static Result<LayerFilesInWork> begin(erofs::WriterOptions options);
  Result<erofs::WrittenImage> finish(std::int64_t unstated_seconds, const std::string& identity);
};

// What a base must have for the sandbox's own mounts.
Result<void> add_mount_points(erofs::Writer& tree);
// The kind and the configuration are part of what the layer is: two records never
// share one digest. Nor does a part of a build with anything else.
std::string image_identity(model::LayerKind kind, const ImportResult& result, const std::string& diff_id = {});

}  // namespace dsec::image
