#include "image/importer.h"

#include <dirent.h>
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
#include "sys/file.h"

namespace dsec::image {

namespace {

constexpr unsigned kDefaultFirstId = 990000;
constexpr std::uint64_t kProbeBytes = 1 << 20;
constexpr std::uint64_t kLeastMemory = 64ULL << 20;
constexpr std::uint64_t kMostMemory = 4ULL << 30;

Result<void> empty_directory(const std::string& path) {
  DSEC_ASSIGN(const sys::Fd directory, sys::open_at(AT_FDCWD, path, O_RDONLY | O_DIRECTORY));
  DSEC_ASSIGN(sys::Fd to_read, sys::open_at(directory.get(), ".", O_RDONLY | O_DIRECTORY));
  DIR* stream = ::fdopendir(to_read.get());
  if (stream == nullptr) return errno_error("read " + path, errno);
  to_read.release();
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(stream)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  ::closedir(stream);
  for (const std::string& name : names) DSEC_TRY(sys::remove_tree_at(directory.get(), name));
  return {};
}

// A file that the worker says it made, taken without trusting its name.
Result<sys::Fd> open_product(int job, const std::string& name) {
  DSEC_ASSIGN(sys::Fd file, sys::open_at(job, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
  struct stat st{};
  if (::fstat(file.get(), &st) != 0) return errno_error("stat " + name, errno);
  if (!S_ISREG(st.st_mode) || st.st_nlink != 1) return Error(ErrorCode::kInternal, "the import worker made no regular file");
  return file;
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

Importer::Importer(Options options, LayerStore& store) : options_(std::move(options)), store_(store) {}

Result<std::unique_ptr<Importer>> Importer::create(Options options, LayerStore& store) {
  if (options.unprivileged_uid == 0) options.unprivileged_uid = kDefaultFirstId;
  DSEC_TRY(sys::make_directories(options.work_directory, 0700));
  DSEC_TRY(empty_directory(options.work_directory).within("empty the import directory"));
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

template <typename Work>
auto Importer::with_job(Work work) -> decltype(work(0, std::string())) {
  DSEC_ASSIGN(const sys::Fd parent, sys::open_at(AT_FDCWD, options_.work_directory, O_RDONLY | O_DIRECTORY));
  const std::string name = "job-" + std::to_string(next_job_++);
  const std::string path = options_.work_directory + "/" + name;
  if (::mkdirat(parent.get(), name.c_str(), 0711) != 0) return errno_error("make " + path, errno);
  const auto run = [&]() -> decltype(work(0, std::string())) {
    DSEC_ASSIGN(const sys::Fd job, sys::open_at(parent.get(), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
    if (::fchown(job.get(), options_.unprivileged_uid, options_.unprivileged_uid) != 0 || ::fchmod(job.get(), 0711) != 0) return errno_error("give away " + path, errno);
    return work(job.get(), path);
  };
  auto result = run();
  Result<void> removed = sys::remove_tree_at(parent.get(), name);
  if (result.ok() && !removed.ok()) return std::move(removed).within("remove " + path).error();
  return result;
}

Result<model::LayerRecord> Importer::import_tar(int input, const ImportOptions& options) { return import(ImportMode::kTar, input, options); }
Result<model::LayerRecord> Importer::import_oci(int input, const ImportOptions& options) { return import(ImportMode::kOci, input, options); }

Result<model::LayerRecord> Importer::import(ImportMode mode, int input, const ImportOptions& options) {
  std::string at = options.at;
  while (at.starts_with('/')) at.erase(0, 1);
  if (!at.empty()) {
    DSEC_ASSIGN(at, clean_path(at).within("at"));
  }
  return with_job([&](int job, const std::string& directory) -> Result<model::LayerRecord> {
    DSEC_ASSIGN(ImportResult result, run_confined({.helper = options_.helper,
                                                   .job_directory = directory,
                                                   .first_id = options_.unprivileged_uid,
                                                   .request = {.mode = mode, .kind = options.kind, .at = at, .max_bytes = options.max_bytes, .max_entries = options.max_entries, .profile = options.profile},
                                                   .input = input,
                                                   .deadline = Deadline::in(options.time_limit),
                                                   .on_progress = relay(options, input),
                                                   .cancelled = options.cancelled}));
    return publish(job, directory, std::move(result), options);
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
  return store_.publish({job_directory + "/layer.meta", job_directory + "/layer.data"}, std::move(record)).within("publish the layer");
}

Result<model::LayerRecord> Importer::import_debian(const std::string& suite, const std::vector<std::string>& packages, const ImportOptions& options) {
  DSEC_TRY(validate_debian_names(suite, packages));
  return with_job([&](int job, const std::string& directory) -> Result<model::LayerRecord> {
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
    return import(ImportMode::kTar, archive.get(), options);
  });
}

Result<std::map<std::string, std::string>> Importer::probe() {
  return with_job([&](int job, const std::string& directory) -> Result<std::map<std::string, std::string>> {
    DSEC_ASSIGN(ImportResult result, run_confined({.helper = options_.helper,
                                                   .job_directory = directory,
                                                   .first_id = options_.unprivileged_uid,
                                                   .request = {.mode = ImportMode::kProbe, .max_bytes = kProbeBytes, .max_entries = 1},
                                                   .deadline = Deadline::in(std::chrono::seconds(30))}));
    struct stat st{};
    if (::fstatat(job, "probe", &st, AT_SYMLINK_NOFOLLOW) == 0) result.facts["host_uid"] = std::to_string(st.st_uid);
    return std::move(result.facts);
  });
}

}  // namespace dsec::image
