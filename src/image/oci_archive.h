// A received OCI layout or docker archive: which layers, in which order, and
// how the image wants to be started.
//
// Every document is compared with the digest that names it before it is parsed;
// the layers themselves are for who reads them. Where a layout holds several
// images, the one for linux and the wanted architecture is taken; two of them are
// an error.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "image/import_messages.h"
#include "image/tar_unpacker.h"
#include "model/layer.h"
#include "sys/fd.h"

namespace dsec::image {

class OciArchive {
 public:
  // Unpacks the outer tar into `directory` (made here) and reads the manifests.
  // `architecture` "" is this node's; an image for another one is kUnsupported.
  static Result<OciArchive> receive(int input, const std::string& directory, UnpackLimits limits, const std::string& architecture, TarUnpacker::Progress progress);

  // A layout that lies in `directory` already, whose layers may be missing.
  static Result<OciArchive> open_layout(const std::string& directory, const std::string& architecture);
  // Of an image of which only these two are here.
  static Result<OciArchive> of_documents(const std::string& manifest, const std::string& configuration, const std::string& architecture);

  // Lowest first; each with its diff_id.
  const std::vector<ArchiveLayer>& layers() const { return layers_; }
  const model::ImageConfig& config() const { return config_; }
  const std::string& architecture() const { return architecture_; }

 private:
  struct Blob {
    std::string path;    // in the archive
    std::string digest;  // of its bytes, "" = not known
  };

  OciArchive(sys::Fd root, const std::string& architecture) : root_(std::move(root)), wanted_(architecture.empty() ? std::string(model::node_architecture()) : architecture) {}
  Result<sys::Fd> open(const std::string& path) const;
  // Reads and verifies a JSON document.
  Result<std::string> read(const Blob& blob) const;
  Result<void> read_layout();
  Result<void> read_docker();
  // Of the manifest; the configuration's blob is the first of the result.
  static Result<std::vector<Blob>> read_manifest(const std::string& text);
  Result<void> read_config(const Blob& blob);
  Result<void> parse_config(const std::string& text);
  Result<void> take_layers(std::vector<Blob> blobs);
  Result<Blob> choose_manifest(const std::string& index, int depth) const;

  sys::Fd root_;
  const std::string wanted_;
  std::vector<ArchiveLayer> layers_;
  std::vector<std::string> diff_ids_;
  model::ImageConfig config_;
  std::string architecture_;
};

// The digest of the manifest for linux and this architecture; "" when `text` is no
// index but a manifest itself.
Result<std::string> image_of_index(const std::string& text, const std::string& architecture);

}  // namespace dsec::image
