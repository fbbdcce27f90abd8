// Import: foreign archives in, our layers out.
//
// Nothing of an archive, image or package is parsed or run as root on the host:
// that happens in a worker process (import_worker.h) under unprivileged ids,
// shut into its own namespaces, a private directory and a system call filter.
// This side takes over the finished image file and a small, strictly read answer.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "erofs/directory_input.h"
#include "image/confined_worker.h"
#include "image/copy_spec.h"
#include "image/import_jobs.h"
#include "image/import_messages.h"
#include "image/layer_optimizer.h"
#include "image/layer_store.h"
#include "image/registry_gate.h"
#include "model/layer.h"

namespace dsec::image {

struct ImportProgress {
  std::string stage;  // "receive", "unpack", "build", "publish"
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;  // 0 = unknown
  std::uint64_t layer = 0;        // of an image: the one at work, from 1; 0 = none
  std::uint64_t layers = 0;
};

struct ImportOptions {
  model::LayerKind kind = model::LayerKind::kBase;
  std::string at;              // where the tree stands in the sandbox: "/work/project"; "" = "/"
  std::string source_label;    // for the record
  std::string architecture;    // of an image, as OCI calls it; "" = this node's
  std::set<std::string> reusable_parts;  // of images that the caller may read: what of them is known is not converted again
  std::optional<model::Provenance> provenance = std::nullopt;  // the same
  // Of a build: what is made is a part of this name, held by `part_holds`.
  std::string part_id = {};
  PartHolds* part_holds = nullptr;
  erofs::Profile profile = erofs::Profile::kLz4;
  std::uint64_t max_bytes = 64ULL << 30;     // unpacked
  std::uint64_t max_entries = 4'000'000;
  std::chrono::seconds time_limit{4 * 3600};
  std::function<void(const ImportProgress&)> on_progress;  // on the calling thread, at most about 10 a second
  const std::atomic<bool>* cancelled = nullptr;
};

struct ImportedImage {
  model::LayerRecord record;
  std::uint64_t layers = 0;         // of the image
  std::uint64_t reused_layers = 0;  // that were known
  std::uint64_t reused_bytes = 0;   // that these take here
};

// A sandbox's upper as a layer.
struct PackOptions {
  ImportOptions layer{.kind = model::LayerKind::kDiff};  // max_bytes counts holes; the stages are "read", "build", "publish"
  erofs::IdRange ids;                 // of the sandbox on the host
  std::vector<std::string> remove;    // erofs/path_patterns.h: what is left out
  std::vector<std::string> allow;     // where residue may stay
  std::vector<ResidueRule> residue;
  model::Provenance provenance;
  // The reader has started, and reads once this returns: what it reads has to stand from then on.
  std::function<Result<void>()> on_ready = {};
};

// Layers over one another as an image, by metadata alone.
struct MergeOptions {
  std::vector<std::string> layers;  // digests, lowest first: images and parts
  std::vector<std::string> parts;   // which of them the record names
  model::ImageConfig config;
  std::optional<model::BuildRecord> build = std::nullopt;
  std::string project = {};         // no other one's image has this digest
  ImportOptions layer;
};

// Files of one image as a part that lies over others.
struct CopyOptions {
  std::vector<std::string> below;  // digests, lowest first
  std::string source;              // digest; "" = none but what the spec itself holds
  CopySpec spec;
  std::string identity;            // what tells it from parts of equal content
  // The part's name by the digest of what was put in it: paths, modes, owners, links, bytes.
  std::function<std::string(const std::string& digest)> name;
  bool reuse = true;               // a part of that name that is there already
  ImportOptions layer;             // part_id is `name`'s to say
};
struct CopiedPart {
  std::optional<model::LayerRecord> record;  // nothing: there was nothing to put anywhere
  std::string digest;
  std::string part_id;
  bool reused = false;
};

class Importer {
 public:
  struct Options {
    std::string work_directory;  // <data-dir>/import; on the layers' filesystem; emptied at start
    std::string helper;          // this program: `dsec import-worker …` runs confined
    // First of 65,536 ids that nothing else on the host uses; 0 = 990000. Every sandbox range lies elsewhere.
    unsigned unprivileged_uid = 0;
    // How much of a Debian system may stand in memory while it is built, 0 = none
    // of it. Unset: an eighth of what is available then, at most 4 GiB.
    std::optional<std::uint64_t> memory_bytes = std::nullopt;
    // What pulls may reach, and how.
    RegistryGate::Options registries = {};
  };
  // `store` outlives the importer.
  static Result<std::unique_ptr<Importer>> create(Options options, LayerStore& store);

  // A tar stream (plain, gzip, zstd, xz; told by its first bytes) from `input`
  // until the archive's end. Blocks; run it on its own thread, which has to live
  // until it returns. On error nothing is left.
  Result<model::LayerRecord> import_tar(int input, const ImportOptions& options);
  // An OCI layout or docker archive (a tar stream of it): one base with its config.
  Result<ImportedImage> import_oci(int input, const ImportOptions& options);
  // `upper` is open for reading, and nobody writes below it until the stage "build".
  // kConflict, with the paths, when residue rules find something; it names what may
  // stay or is to go.
  Result<model::LayerRecord> pack(int upper, const PackOptions& options);
  // For builds; the layers named are held by the caller.
  Result<model::LayerRecord> merge(const MergeOptions& options);
  Result<CopiedPart> copy(const CopyOptions& options);
  // From a registry that Options::registries allows, else kPermissionDenied. `authfile`
  // is what stands in a file as `skopeo login` writes it, or ""; it is kept nowhere.
  Result<ImportedImage> pull(const RegistryReference& reference, const std::string& authfile, const ImportOptions& options);
  // A layer of the store, rewritten so that what the traces say was read first lies
  // first (layer_optimizer.h); the layer itself stays as it is. Of the options only
  // progress ("build", "publish") and cancellation count. Reads all of its data.
  struct Optimized {
    model::LayerRecord record;
    erofs::HotCounts counts;
  };
  Result<Optimized> optimize(const std::string& digest, const TracesByData& traces, const ImportOptions& options);
  // "bookworm", {"git", "python3"}: built here, unprivileged, from the node's own apt sources.
  Result<model::LayerRecord> import_debian(const std::string& suite, const std::vector<std::string>& packages,
                                           const ImportOptions& options);
  // What a worker can and cannot do on this host, by trying: for doctor.
  // Keys and values as import_worker.cc makes them. kHost: one that reads uppers.
  Result<std::map<std::string, std::string>> probe(WorkerUsers users = WorkerUsers::kOwn);

 private:
  Importer(Options options, LayerStore& store);
  Result<model::LayerRecord> publish(int job, const std::string& job_directory, ImportResult result, const ImportOptions& options);
  std::uint64_t memory_for_a_job() const;

  const Options options_;
  LayerStore& store_;
  ImportJobs jobs_;
};

}  // namespace dsec::image
