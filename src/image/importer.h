// Import: foreign archives in, our layers out.
//
// Nothing of an archive, image or package is parsed or run as root on the host:
// the parser and mkfs.erofs run in a child under an unprivileged uid with a
// seccomp filter, no network and a private directory; debian: runs mmdebstrap
// --mode=unshare under such a uid.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "image/layer_store.h"
#include "model/layer.h"

namespace dsec::image {

struct ImportProgress {
  std::string stage;  // "receive", "unpack", "build", "publish"
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;  // 0 = unknown
};

struct ImportOptions {
  model::LayerKind kind = model::LayerKind::kBase;
  std::string at;              // where the tree stands in the sandbox: "/work/project"; "" = "/"
  std::string source_label;    // for the record
  std::uint64_t max_bytes = 64ULL << 30;     // unpacked
  std::uint64_t max_entries = 4'000'000;
  std::function<void(const ImportProgress&)> on_progress;  // any thread, at most 10 a second
  const std::atomic<bool>* cancelled = nullptr;
};

class Importer {
 public:
  struct Options {
    std::string work_directory;  // <data-dir>/import; emptied at start
    std::string helper;          // this program: `dsec import-worker …` runs confined
    unsigned unprivileged_uid = 0;  // 0 = 990000 + a slot; outside every sandbox range
  };
  Importer(Options options, LayerStore& store);

  // A tar stream (plain, gzip, zstd, xz; told by its first bytes) from `input`
  // until end of file. Blocks; run it on its own thread. On error nothing is left.
  Result<model::LayerRecord> import_tar(int input, const ImportOptions& options);
  // An OCI layout or docker archive (a tar stream of it): one base with its config.
  Result<model::LayerRecord> import_oci(int input, const ImportOptions& options);
  // "bookworm", {"git", "python3"}: built here, unprivileged, from the node's own apt sources.
  Result<model::LayerRecord> import_debian(const std::string& suite, const std::vector<std::string>& packages,
                                           const ImportOptions& options);

 private:
  const Options options_;
  LayerStore& store_;
};

}  // namespace dsec::image
