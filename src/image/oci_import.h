// An OCI layout or docker archive becomes one layer of ours.
//
// Each of the image's layers is converted by itself, once: a part. The image is then
// metadata that lays the parts over one another (erofs/layer_merge.h); its content
// stays where the parts have it, so images that share layers share the data.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "image/import_jobs.h"
#include "image/importer.h"
#include "image/part_holds.h"
#include "image/registry_gate.h"
#include "image/registry_reference.h"

namespace dsec::image {

class OciImport {
 public:
  struct Host {
    std::string helper;
    unsigned first_id = 0;
  };
  // All outlive this.
  OciImport(ImportJobs& jobs, LayerStore& store, const Host& host, const ImportOptions& options);

  // `input` is a tar stream of the archive.
  Result<ImportedImage> run(int input);
  struct Pull {
    RegistryReference reference;
    AllowedRegistry registry;  // that it is in
    std::string authfile;      // what stands in it; a secret
    RegistryGate::Options gate;
  };
  Result<ImportedImage> pull(const Pull& pull);

 private:
  struct Part {
    model::LayerRecord record;
    LayerStore::OpenFiles files;
  };
  Result<ImportResult> ask_registry(const Pull& pull, const std::string& directory, ImportRequest request);
  std::vector<std::string> known_blobs(const ImportResult& plan);
  Result<ImportedImage> build(int job, ImportResult plan);
  Result<model::LayerRecord> part_of(int job, const ArchiveLayer& layer, std::size_t number, ImportedImage& image);
  Result<model::LayerRecord> convert(int job, const ArchiveLayer& layer, std::size_t number);
  Result<ImportResult> run_part_worker(const std::string& directory, const ArchiveLayer& layer, int input, std::size_t number);
  Result<void> add_part(model::LayerRecord record);
  Result<void> count(const model::LayerRecord& part);
  Result<model::LayerRecord> merge(const ImportResult& plan);
  std::function<void(const WorkerProgress&)> relay(std::size_t layer) const;

  ImportJobs& jobs_;
  LayerStore& store_;
  const Host& host_;
  const ImportOptions& options_;
  const Deadline deadline_;
  PartHolds holds_;
  std::size_t layers_ = 0;
  std::vector<Part> parts_;
  std::map<std::string, std::uint64_t> part_of_diff_id_;
  std::vector<std::uint64_t> stack_;
  std::uint64_t content_bytes_ = 0;
  std::uint64_t entries_ = 0;
};

}  // namespace dsec::image
