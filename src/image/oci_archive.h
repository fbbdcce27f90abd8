// A received OCI layout or docker archive: which layers, in which order, and
// how the image wants to be started.
//
// Every blob is compared with the digest that names it before it is parsed.
// Where a layout holds several images, the one for linux and this node's
// architecture is taken; two of them are an error.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "image/tar_unpacker.h"
#include "model/layer.h"
#include "sys/fd.h"

namespace dsec::image {

class OciArchive {
 public:
  // Unpacks the outer tar into `directory` (made here) and reads the manifests.
  static Result<OciArchive> receive(int input, const std::string& directory, UnpackLimits limits, TarUnpacker::Progress progress);

  // Lowest layer first. A layer's file is removed as soon as it is applied.
  Result<void> apply_layers(TarUnpacker& unpacker);
  const model::ImageConfig& config() const { return config_; }
  const std::string& architecture() const { return architecture_; }

 private:
  struct Blob {
    std::string path;     // in the archive
    std::string digest;   // of its bytes, "" = not known
    std::string diff_id;  // of its bytes uncompressed, "" = not to be looked at
  };

  explicit OciArchive(sys::Fd root) : root_(std::move(root)) {}
  Result<sys::Fd> open(const std::string& path) const;
  // Reads and verifies a JSON document.
  Result<std::string> read(const Blob& blob) const;
  Result<void> read_layout();
  Result<void> read_docker();
  Result<void> read_config(const Blob& blob, std::vector<std::string>& diff_ids);
  Result<Blob> choose_manifest(const std::string& index, int depth) const;

  sys::Fd root_;
  std::vector<Blob> layers_;
  model::ImageConfig config_;
  std::string architecture_;
};

}  // namespace dsec::image
