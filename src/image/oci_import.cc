#include "image/oci_import.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/fail_point.h"
#include "erofs/digest.h"
#include "image/clean_path.h"
#include "image/confined_worker.h"
#include "image/layer_stream.h"
#include "image/parent_layer.h"

namespace dsec::image {

namespace {

// A tar is larger than what is in it.
constexpr std::uint64_t kTarOverhead = 4ULL << 30;
constexpr std::uint64_t kAuthMemory = 1 << 20;

std::int64_t now_ms() { return std::chrono::duration_cast<std::chrono::milliseconds>(SystemClock().wall_now().time_since_epoch()).count(); }

// A file that is not what its digest says explains every other complaint about it.
Error blame(int blob, const ArchiveLayer& layer, Error error) {
  if (layer.digest.empty() || error.code() == ErrorCode::kCancelled) return error;
  const Result<std::string> found = erofs::digest_of_file(blob);
  if (!found.ok() || *found == layer.digest) return error;
  return Error(ErrorCode::kDataFault, "it is not what its digest says");
}

}  // namespace

OciImport::OciImport(ImportJobs& jobs, LayerStore& store, const Host& host, const ImportOptions& options)
    : jobs_(jobs), store_(store), host_(host), options_(options), deadline_(Deadline::in(options.time_limit)), holds_(store) {}

Result<ImportedImage> OciImport::run(int input) {
  return jobs_.with_job([&](int job, const std::string& directory) -> Result<ImportedImage> {
    DSEC_ASSIGN(ImportResult plan, run_confined({.helper = host_.helper,
                                                 .job_directory = directory,
                                                 .first_id = host_.first_id,
                                                 .request = {.mode = ImportMode::kArchive, .max_bytes = options_.max_bytes, .max_entries = options_.max_entries, .architecture = options_.architecture},
                                                 .input = input,
                                                 .deadline = deadline_,
                                                 .on_progress = relay(0),
                                                 .cancelled = options_.cancelled}));
    return build(job, std::move(plan));
  });
}

Result<ImportedImage> OciImport::pull(const Pull& pull) {
  const std::string architecture = options_.architecture.empty() ? std::string(model::node_architecture()) : options_.architecture;
  ImportRequest request{.mode = ImportMode::kInspect, .max_bytes = options_.max_bytes, .max_entries = options_.max_entries, .architecture = architecture, .reference = pull.reference.text()};
  DSEC_ASSIGN(const ImportResult plan, jobs_.with_job([&](int, const std::string& directory) { return ask_registry(pull, directory, request); }));
  const auto pinned = plan.facts.find("reference");
  if (pinned == plan.facts.end()) return Error(ErrorCode::kInternal, "the import worker named no manifest");
  request.mode = ImportMode::kFetch;
  request.reference = pinned->second;
  request.known = known_blobs(plan);
  return jobs_.with_job([&](int job, const std::string& directory) -> Result<ImportedImage> {
    DSEC_ASSIGN(ImportResult fetched, ask_registry(pull, directory, request));
    return build(job, std::move(fetched));
  });
}

Result<ImportResult> OciImport::ask_registry(const Pull& pull, const std::string& directory, ImportRequest request) {
  RegistryGate gate(pull.gate);
  request.plain_http = pull.registry.plain_http;
  request.hosts = gate.hosts();
  request.authorities = pull.gate.authorities;
  request.memory_bytes = kAuthMemory;
  const sys::Fd secret(::memfd_create("authfile", MFD_CLOEXEC));
  if (!secret) return errno_error("hold the authfile", errno);
  DSEC_TRY(sys::write_all(secret.get(), pull.authfile));
  if (::lseek(secret.get(), 0, SEEK_SET) != 0) return errno_error("hold the authfile", errno);
  Result<ImportResult> answer = run_confined({.helper = host_.helper,
                                              .job_directory = directory,
                                              .first_id = host_.first_id,
                                              .request = request,
                                              .input = secret.get(),
                                              .before_start = [&](int pid) { return gate.open(pid); },
                                              .deadline = deadline_,
                                              .on_tick = [&] { if (options_.on_progress) options_.on_progress({.stage = "receive", .done_bytes = gate.received_bytes()}); },
                                              .cancelled = options_.cancelled});
  return std::move(answer).within("pull " + pull.reference.text());
}

// What has become a part already, and is held from now on.
std::vector<std::string> OciImport::known_blobs(const ImportResult& plan) {
  std::vector<std::string> out;
  const std::string profile(to_string(options_.profile));
  for (const ArchiveLayer& layer : plan.layers) {
    if (layer.digest.empty() || std::find(out.begin(), out.end(), layer.digest) != out.end()) continue;
    if (store_.find_part(layer.diff_id, profile, options_.reusable_parts, holds_)) out.push_back(layer.digest);
  }
  return out;
}

Result<ImportedImage> OciImport::build(int job, ImportResult plan) {
  ImportedImage image;
  layers_ = plan.layers.size();
  image.layers = layers_;
  for (std::size_t i = 0; i < layers_; i++) {
    const ArchiveLayer& layer = plan.layers[i];
    if (!part_of_diff_id_.contains(layer.diff_id)) {
      DSEC_ASSIGN(model::LayerRecord record, part_of(job, layer, i, image).within("layer " + std::to_string(i)));
      DSEC_TRY(add_part(std::move(record)));
    }
    stack_.push_back(part_of_diff_id_.at(layer.diff_id));
  }
  DSEC_ASSIGN(image.record, merge(plan));
  return image;
}

Result<model::LayerRecord> OciImport::part_of(int job, const ArchiveLayer& layer, std::size_t number, ImportedImage& image) {
  if (std::optional<model::LayerRecord> known = store_.find_part(layer.diff_id, std::string(to_string(options_.profile)), options_.reusable_parts, holds_)) {
    image.reused_layers++;
    image.reused_bytes += known->size_bytes;
    return std::move(*known);
  }
  return convert(job, layer, number);
}

// The archive's own bounds hold for all of its layers together, also for those that were known.
Result<void> OciImport::count(const model::LayerRecord& part) {
  content_bytes_ += part.content_bytes;
  entries_ += part.entries;
  if (content_bytes_ > options_.max_bytes) return Error(ErrorCode::kTooLarge, "the archive unpacks to more than " + std::to_string(options_.max_bytes) + " bytes");
  if (entries_ > options_.max_entries) return Error(ErrorCode::kTooLarge, "the archive holds more than " + std::to_string(options_.max_entries) + " entries");
  return {};
}

Result<void> OciImport::add_part(model::LayerRecord record) {
  DSEC_TRY(count(record));
  DSEC_ASSIGN(LayerStore::OpenFiles files, open_parent(store_, record.digest));
  part_of_diff_id_[record.diff_id] = parts_.size();
  parts_.push_back({std::move(record), std::move(files)});
  return {};
}

Result<model::LayerRecord> OciImport::convert(int job, const ArchiveLayer& layer, std::size_t number) {
  DSEC_ASSIGN(const sys::Fd blob, open_product_in(job, "archive", layer.path));
  const LayerStream::Options how{.helper = host_.helper, .first_id = host_.first_id, .max_bytes = options_.max_bytes + kTarOverhead, .deadline = deadline_};
  DSEC_ASSIGN(const std::unique_ptr<LayerStream> stream, LayerStream::start(jobs_, how, blob.get()));
  return jobs_.with_job([&](int, const std::string& directory) -> Result<model::LayerRecord> {
    Result<ImportResult> done = run_part_worker(directory, layer, stream->output(), number);
    stream->close_output(done.ok() ? LayerStream::Reader::kSatisfied : LayerStream::Reader::kFailed);
    if (!done.ok()) {
      Result<void> broken = stream->failure();
      return blame(blob.get(), layer, broken.ok() ? std::move(done).error() : std::move(broken).error());
    }
    Result<std::string> digest = stream->digest();
    if (!digest.ok()) return blame(blob.get(), layer, std::move(digest).error());
    if (*digest != layer.diff_id) return Error(ErrorCode::kDataFault, "it is not what the configuration says");
    DSEC_TRY(fail_point("image.import.part"));
    model::LayerRecord record{.digest = "", .kind = model::LayerKind::kBase, .content_bytes = done->counts.content_bytes, .entries = done->counts.entries};
    record.profile = to_string(options_.profile);
    record.created_at_ms = now_ms();
    record.diff_id = layer.diff_id;
    return store_.publish({directory + "/layer.meta", directory + "/layer.data"}, std::move(record), &holds_).within("publish a part");
  });
}

Result<ImportResult> OciImport::run_part_worker(const std::string& directory, const ArchiveLayer& layer, int input, std::size_t number) {
  return run_confined({.helper = host_.helper,
                       .job_directory = directory,
                       .first_id = host_.first_id,
                       .request = {.mode = ImportMode::kPart, .max_bytes = options_.max_bytes, .max_entries = options_.max_entries, .profile = options_.profile, .diff_id = layer.diff_id},
                       .input = input,
                       .deadline = deadline_,
                       .on_progress = relay(number + 1),
                       .cancelled = options_.cancelled});
}

Result<model::LayerRecord> OciImport::merge(const ImportResult& plan) {
  ImportRequest request{.mode = ImportMode::kMerge, .kind = options_.kind, .at = options_.at, .max_bytes = options_.max_bytes, .max_entries = options_.max_entries, .profile = options_.profile};
  request.architecture = plan.architecture;
  request.config = plan.config;
  request.stack = stack_;
  std::vector<int> files;
  model::LayerRecord record{.digest = "", .kind = options_.kind};
  for (const Part& part : parts_) {
    files.push_back(part.files.metadata.get());
    for (const sys::Fd& data : part.files.data) files.push_back(data.get());
    request.data_files.push_back(part.files.data.size());
    record.parts.push_back(part.record.digest);
  }
  return jobs_.with_job([&](int, const std::string& directory) -> Result<model::LayerRecord> {
    DSEC_ASSIGN(const ImportResult done, run_confined({.helper = host_.helper,
                                                       .job_directory = directory,
                                                       .first_id = host_.first_id,
                                                       .request = request,
                                                       .passed = files,
                                                       .deadline = deadline_,
                                                       .on_progress = relay(0),
                                                       .cancelled = options_.cancelled}));
    DSEC_TRY(fail_point("image.import.publish"));
    if (options_.on_progress) options_.on_progress({.stage = "publish"});
    record.content_bytes = done.counts.content_bytes;
    record.entries = done.counts.entries;
    record.profile = to_string(options_.profile);
    record.architecture = plan.architecture;
    record.source = options_.source_label;
    record.created_at_ms = now_ms();
    record.config = plan.config;
    return store_.publish({directory + "/layer.meta", directory + "/layer.data"}, std::move(record)).within("publish the image");
  });
}

std::function<void(const WorkerProgress&)> OciImport::relay(std::size_t layer) const {
  if (!options_.on_progress) return {};
  return [this, layer](const WorkerProgress& progress) { options_.on_progress({.stage = progress.stage, .done_bytes = progress.done_bytes, .layer = layer, .layers = layer == 0 ? 0 : layers_}); };
}

}  // namespace dsec::image
