#include "image/importer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/fail_point.h"
#include "image/clean_path.h"
#include "image/confined_worker.h"
#include "image/debian_builder.h"
#include "image/oci_import.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

constexpr unsigned kDefaultFirstId = 990000;
constexpr std::uint64_t kProbeBytes = 1 << 20;
constexpr std::uint64_t kProgressBytes = 32 << 20;
constexpr std::uint64_t kLeastMemory = 64ULL << 20;
constexpr std::uint64_t kMostMemory = 4ULL << 30;

// Clean and relative.
Result<std::string> place_of(std::string at) {
  while (at.starts_with('/')) at.erase(0, 1);
  if (at.empty()) return at;
  return clean_path(at).within("at");
}

std::function<void(const WorkerProgress&)> relay(const ImportOptions& options, int input) {
  if (!options.on_progress) return {};
  struct stat st{};
  const bool sized = input >= 0 && ::fstat(input, &st) == 0 && S_ISREG(st.st_mode);
  const std::uint64_t total = sized ? static_cast<std::uint64_t>(st.st_size) : 0;
  return [&options, total](const WorkerProgress& progress) {
    const bool of_input = progress.stage == "receive" || progress.stage == "unpack";
    options.on_progress({progress.stage, progress.done_bytes, of_input ? total : 0});
  };
}

}  // namespace

Importer::Importer(Options options, LayerStore& store) : options_(std::move(options)), store_(store), jobs_(options_.work_directory, options_.unprivileged_uid) {}

Result<std::unique_ptr<Importer>> Importer::create(Options options, LayerStore& store) {
  if (options.unprivileged_uid == 0) options.unprivileged_uid = kDefaultFirstId;
  DSEC_TRY(ImportJobs::prepare(options.work_directory).within("empty the import directory"));
  return std::unique_ptr<Importer>(new Importer(std::move(options), store));
}

std::uint64_t Importer::memory_for_a_job() const {
  if (options_.memory_bytes) return *options_.memory_bytes;
  const Result<std::string> text = sys::read_file("/proc/meminfo");
  const std::size_t at = text.ok() ? text->find("MemAvailable:") : std::string::npos;
  if (at == std::string::npos) return 0;
  const std::uint64_t eighth = std::strtoull(text->c_str() + at + 13, nullptr, 10) * 1024 / 8;
  return eighth < kLeastMemory ? 0 : std::min(eighth, kMostMemory);
}

Result<model::LayerRecord> Importer::import_tar(int input, const ImportOptions& options) {
  DSEC_ASSIGN(const std::string at, place_of(options.at));
  return jobs_.with_job([&](int job, const std::string& directory) -> Result<model::LayerRecord> {
    DSEC_ASSIGN(ImportResult result, run_confined({.helper = options_.helper,
                                                   .job_directory = directory,
                                                   .first_id = options_.unprivileged_uid,
                                                   .request = {.mode = ImportMode::kTar, .kind = options.kind, .at = at, .max_bytes = options.max_bytes, .max_entries = options.max_entries, .profile = options.profile, .diff_id = options.part_id},
                                                   .input = input,
                                                   .deadline = Deadline::in(options.time_limit),
                                                   .on_progress = relay(options, input),
                                                   .cancelled = options.cancelled}));
    return publish(job, directory, std::move(result), options);
  });
}

Result<ImportedImage> Importer::import_oci(int input, const ImportOptions& options) {
  ImportOptions placed = options;
  DSEC_ASSIGN(placed.at, place_of(options.at));
  const OciImport::Host host{.helper = options_.helper, .first_id = options_.unprivileged_uid};
  return OciImport(jobs_, store_, host, placed).run(input);
}

namespace {

constexpr std::size_t kToldFindings = 20;

Error residue_error(const std::vector<ResidueFinding>& findings) {
  std::string text = "residue rules refuse what is left in";
  for (std::size_t i = 0; i < findings.size() && i < kToldFindings; i++) {
    text += (i == 0 ? " /" : ", /") + tame(findings[i].path, 512) + " (" + tame(findings[i].rule, 64) + ")";
  }
  if (findings.size() > kToldFindings) text += " and more";
  return Error(ErrorCode::kConflict, text + ": name the paths in remove or in allow");
}

}  // namespace

Result<model::LayerRecord> Importer::pack(int upper, const PackOptions& options) {
  ImportOptions layer = options.layer;
  layer.provenance = options.provenance;
  return jobs_.with_job([&](int job, const std::string& directory) -> Result<model::LayerRecord> {
    DSEC_TRY(sys::replace_file(directory + "/residue", encode(options.residue), 0600));
    DSEC_TRY(fail_point("image.pack.read"));
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("make a pipe", errno);
    const sys::Fd waits(ends[0]);
    sys::Fd go(ends[1]);
    Result<void> ready;
    const auto listen = [&, told = relay(layer, -1)](const WorkerProgress& progress) {
      if (progress.stage != "ready") return told ? told(progress) : void();
      if (!go) return;  // said twice: one that was broken into
      if (options.on_ready) ready = options.on_ready();
      if (ready.ok()) (void)sys::write_all(go.get(), "1");  // a reader that is gone is told of by its end
      go.reset();
    };
    Result<ImportResult> read = run_confined({.helper = options_.helper,
                                                   .job_directory = directory,
                                                   .first_id = options_.unprivileged_uid,
                                                   .request = {.mode = ImportMode::kUpper,
                                                               .kind = layer.kind,
                                                               .max_bytes = layer.max_bytes,
                                                               .max_entries = layer.max_entries,
                                                               .profile = layer.profile,
                                                               .diff_id = layer.part_id,
                                                               .upper = {.first_id = options.ids.outside,
                                                                         .ids = options.ids.count,
                                                                         .run_as = options_.unprivileged_uid,
                                                                         .remove = options.remove,
                                                                         .allow = options.allow,
                                                                         .parents = options.provenance.parents,
                                                                         .project = options.provenance.project}},
                                                   .input = upper,
                                                   .passed = {waits.get()},
                                                   .users = WorkerUsers::kHost,
                                                   .deadline = Deadline::in(layer.time_limit),
                                                   .on_progress = listen,
                                                   .cancelled = layer.cancelled});
    DSEC_TRY(ready);
    DSEC_ASSIGN(ImportResult result, std::move(read));
    if (!result.residue.empty()) return residue_error(result.residue);
    return publish(job, directory, std::move(result), layer);
  });
}

Result<ImportedImage> Importer::pull(const RegistryReference& reference, const std::string& authfile, const ImportOptions& options) {
  ImportOptions placed = options;
  DSEC_ASSIGN(placed.at, place_of(options.at));
  DSEC_ASSIGN(const AllowedRegistry registry, find_allowed(options_.registries.allowed, reference));
  const OciImport::Host host{.helper = options_.helper, .first_id = options_.unprivileged_uid};
  return OciImport(jobs_, store_, host, placed).pull({reference, registry, authfile, options_.registries});
}

Result<Importer::Optimized> Importer::optimize(const std::string& digest, const TracesByData& traces, const ImportOptions& options) {
  return jobs_.with_job([&](int, const std::string& directory) -> Result<Optimized> {
    erofs::HotLayoutOptions layout{.on_progress = {}, .cancelled = options.cancelled};
    std::uint64_t told = 0;
    layout.on_progress = [&](std::uint64_t done, std::uint64_t total) {
      if (!options.on_progress || (done < told + kProgressBytes && done != total)) return;
      told = done;
      options.on_progress({"build", done, total});
    };
    DSEC_ASSIGN(OptimizedFiles made, optimize_layer(store_, digest, traces, directory, layout).within("lay out " + digest));
    DSEC_TRY(fail_point("image.optimize.publish"));
    if (options.on_progress) options.on_progress({"publish", 0, made.counts.data_bytes});
    DSEC_ASSIGN(model::LayerRecord record, store_.publish({directory + "/layer.meta", directory + "/layer.data"}, std::move(made.record)).within("publish the layer"));
    return Optimized{std::move(record), made.counts};
  });
}

Result<model::LayerRecord> Importer::publish(int job, const std::string& job_directory, ImportResult result, const ImportOptions& options) {
  DSEC_TRY(fail_point("image.import.publish"));
  std::uint64_t bytes = 0;
  for (const char* name : {"layer.meta", "layer.data"}) {
    DSEC_ASSIGN(const sys::Fd file, open_product(job, name));
    struct stat st{};
    if (::fstat(file.get(), &st) != 0) return errno_error("stat the image", errno);
    bytes += static_cast<std::uint64_t>(st.st_size);
  }
  if (options.on_progress) options.on_progress({"publish", 0, bytes});
  model::LayerRecord record;
  record.kind = options.kind;
  record.content_bytes = result.counts.content_bytes;
  record.entries = result.counts.entries;
  record.profile = to_string(options.profile);
  record.architecture = result.architecture;
  record.source = options.source_label;
  record.created_at_ms = std::chrono::duration_cast<std::chrono::milliseconds>(SystemClock().wall_now().time_since_epoch()).count();
  record.config = std::move(result.config);
  record.provenance = options.provenance;
  record.diff_id = options.part_id;
  return store_.publish({job_directory + "/layer.meta", job_directory + "/layer.data"}, std::move(record), options.part_holds).within("publish the layer");
}

Result<model::LayerRecord> Importer::import_debian(const std::string& suite, const std::vector<std::string>& packages, const ImportOptions& options) {
  DSEC_TRY(validate_debian_names(suite, packages));
  return jobs_.with_job([&](int job, const std::string& directory) -> Result<model::LayerRecord> {
    // The stages of the first worker are one to the caller: building the system.
    ImportOptions built = options;
    if (options.on_progress) {
      built.on_progress = [&](const ImportProgress& progress) { options.on_progress({"receive", progress.done_bytes, 0}); };
    }
    DSEC_TRY([&]() -> Result<void> {
      DSEC_ASSIGN(const ImportResult done, run_confined({.helper = options_.helper,
                                                         .job_directory = directory,
                                                         .first_id = options_.unprivileged_uid,
                                                         .request = {.mode = ImportMode::kDebian, .kind = options.kind, .max_bytes = options.max_bytes, .max_entries = options.max_entries, .memory_bytes = memory_for_a_job(), .suite = suite, .packages = packages},
                                                         .node_network = true,
                                                         .deadline = Deadline::in(options.time_limit),
                                                         .on_progress = relay(built, -1),
                                                         .cancelled = options.cancelled}));
      return {};
    }());
    DSEC_ASSIGN(const sys::Fd archive, open_product(job, "rootfs.tar"));
    return import_tar(archive.get(), options);
  });
}

Result<std::map<std::string, std::string>> Importer::probe(WorkerUsers users) {
  return jobs_.with_job([&](int job, const std::string& directory) -> Result<std::map<std::string, std::string>> {
    DSEC_ASSIGN(ImportResult result, run_confined({.helper = options_.helper,
                                                   .job_directory = directory,
                                                   .first_id = options_.unprivileged_uid,
                                                   .request = {.mode = ImportMode::kProbe,
                                                               .max_bytes = kProbeBytes,
                                                               .max_entries = 1,
                                                               .upper = {.run_as = users == WorkerUsers::kHost ? options_.unprivileged_uid : 0}},
                                                   .users = users,
                                                   .deadline = Deadline::in(std::chrono::seconds(30))}));
    struct stat st{};
    if (::fstatat(job, "probe", &st, AT_SYMLINK_NOFOLLOW) == 0) result.facts["host_uid"] = std::to_string(st.st_uid);
    return std::move(result.facts);
  });
}

}  // namespace dsec::image
