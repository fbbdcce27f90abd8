#include "image/worker_layer.h"

#include <fcntl.h>

#include "sys/file.h"

namespace dsec::image {

Result<LayerFilesInWork> LayerFilesInWork::begin(erofs::WriterOptions options) {
  constexpr int kNewFile = O_RDWR | O_CREAT | O_EXCL;
  LayerFilesInWork layer;
  DSEC_ASSIGN(layer.metadata, sys::open_at(AT_FDCWD, "/work/layer.meta", kNewFile, 0600));
  DSEC_ASSIGN(layer.data, sys::open_at(AT_FDCWD, "/work/layer.data", kNewFile, 0600));
  layer.writer = std::make_unique<erofs::Writer>(layer.metadata.get(), layer.data.get(), std::move(options));
  return layer;
}

Result<erofs::WrittenImage> LayerFilesInWork::finish(std::int64_t unstated_seconds, const std::string& identity) {
  return writer->finish({.unstated_seconds = unstated_seconds, .identity = identity}).within("build the image");
}

Result<void> add_mount_points(erofs::Writer& tree) {
  for (const char* name : {"proc", "sys", "dev", "run", "etc"}) DSEC_TRY(tree.ensure_directory(name, 0755).within("a base needs directories for its mounts"));
  return tree.ensure_directory("tmp", 01777).within("a base needs directories for its mounts");
}

std::string image_identity(model::LayerKind kind, const ImportResult& result, const std::string& diff_id) {
  ImportResult settings;
  settings.config = result.config;
  settings.architecture = result.architecture;
  return encode(ImportRequest{.kind = kind, .diff_id = diff_id}) + encode(settings);
}

}  // namespace dsec::image
