#include "origin/directory_origin.h"

#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "base/log.h"
#include "origin/publish_rules.h"
#include "origin/store_file.h"
#include "sys/file.h"

namespace dsec::origin {

namespace {

using OpenedFile = std::shared_ptr<StoreFile>;

// Its work keeps the threads only weakly: they wait for it when they end.
Result<OpenedFile> open_file(const std::string& path, const std::shared_ptr<ExpendableThreads>& threads, const std::shared_ptr<UsrbioRing>& ring, Deadline deadline) {
  return threads->call<OpenedFile>([path, ring, keep = std::weak_ptr(threads)] { return StoreFile::open(path, keep, ring); }, deadline);
}

// Opens its file anew after each error, because an error can stick to a file
// that is open and not to the next one.
class DirectoryObject final : public Object {
 public:
  DirectoryObject(std::string path, std::shared_ptr<ExpendableThreads> threads, std::shared_ptr<UsrbioRing> ring, OpenedFile file)
      : path_(std::move(path)), threads_(std::move(threads)), ring_(std::move(ring)), size_(file->size()), file_(std::move(file)) {}

  std::uint64_t size() const override { return size_; }

  Result<Buffer> read(std::uint64_t offset, std::size_t length, Deadline deadline) const override {
    DSEC_TRY(check_range(size_, offset, length));
    DSEC_ASSIGN(const OpenedFile file, file_to_read(deadline));
    Result<Buffer> got = file->read(*threads_, offset, length, deadline);
    if (!got.ok()) forget(file);
    return got;
  }

 private:
  Result<OpenedFile> file_to_read(Deadline deadline) const {
    {
      const std::lock_guard lock(mutex_);
      if (file_) return file_;
    }
    DSEC_ASSIGN(OpenedFile fresh, open_file(path_, threads_, ring_, deadline));
    if (fresh->size() != size_) return Error(ErrorCode::kDataFault, path_ + " has another size than before");
    const std::lock_guard lock(mutex_);
    if (!file_) file_ = fresh;
    return file_;
  }

  void forget(const OpenedFile& file) const {
    const std::lock_guard lock(mutex_);
    if (file_ == file) file_.reset();
  }

  const std::string path_;
  const std::shared_ptr<ExpendableThreads> threads_;
  const std::shared_ptr<UsrbioRing> ring_;
  const std::uint64_t size_;
  mutable std::mutex mutex_;  // guards file_; never held over a call of the file system
  mutable OpenedFile file_;   // none after an error
};

struct Place {
  long file_system = 0;
  dev_t device = 0;
};

Result<Place> look_at(const std::string& directory) {
  struct stat st{};
  struct statfs fs{};
  if (::stat(directory.c_str(), &st) != 0 || ::statfs(directory.c_str(), &fs) != 0) return store_error("look at " + directory, errno);
  if (!S_ISDIR(st.st_mode)) return invalid_argument(directory + " is not a directory");
  return Place{static_cast<long>(fs.f_type), st.st_dev};
}

bool is_folder(const std::string& name) { return name.size() == 2 && name.find_first_not_of("0123456789abcdef") == std::string::npos; }

// The names in a directory, ascending; none when it is not there.
Result<std::vector<std::string>> names_in(const std::string& directory) {
  Result<std::vector<std::string>> names = sys::list_directory(directory);
  if (!names.ok() && names.error().code() == ErrorCode::kNotFound) return std::vector<std::string>();
  if (!names.ok()) return store_error("list " + directory, names.error().error_number());
  std::sort(names->begin(), names->end());
  return names;
}

}  // namespace

DirectoryOrigin::DirectoryOrigin(Options options, long file_system)
    : directory_(std::move(options.directory)), file_system_(file_system), threads_(std::make_shared<ExpendableThreads>(std::move(options.threads))) {}
DirectoryOrigin::~DirectoryOrigin() = default;

Result<std::unique_ptr<DirectoryOrigin>> DirectoryOrigin::create(Options options, Deadline deadline) {
  if (!options.directory.starts_with('/')) return invalid_argument("a store's directory is an absolute path: " + options.directory);
  std::unique_ptr<DirectoryOrigin> made(new DirectoryOrigin(options, 0));
  DSEC_ASSIGN(const Place place, made->threads_->call<Place>([directory = options.directory] { return look_at(directory); }, deadline));
  made.reset(new DirectoryOrigin(options, place.file_system));
  if (!options.usrbio_library.empty()) made->use_usrbio(options, place.device, deadline);
  return made;
}

void DirectoryOrigin::use_usrbio(const Options& options, dev_t device, Deadline deadline) {
  using Ring = std::shared_ptr<UsrbioRing>;
  Result<Ring> ring = threads_->call<Ring>([options, device] { return ring_for(options.directory, device, options.usrbio_library, options.mountinfo); }, deadline);
  if (ring.ok()) {
    ring_ = std::move(ring).value();
    return;
  }
  usrbio_ = ring.error();
  log_warning("the store is on 3FS and is read without USRBIO", {{"store", directory_}, {"why", usrbio_.error().message()}});
}

// A mount that went away leaves an empty directory, in which nothing may be
// stored and nothing is missing.
Result<void> DirectoryOrigin::check_place(Deadline deadline) const {
  DSEC_ASSIGN(const Place place, threads_->call<Place>([directory = directory_] { return look_at(directory); }, deadline));
  if (place.file_system != file_system_) return Error(ErrorCode::kUnavailable, directory_ + " is not on the file system that it was on");
  return {};
}

Result<std::unique_ptr<Object>> DirectoryOrigin::open(const ObjectName& name, Deadline deadline) {
  Result<OpenedFile> file = open_file(path(name), threads_, ring_, deadline);
  if (!file.ok() && file.error().code() == ErrorCode::kNotFound) DSEC_TRY(check_place(deadline));
  if (!file.ok()) return std::move(file).error();
  return std::unique_ptr<Object>(std::make_unique<DirectoryObject>(path(name), threads_, ring_, std::move(file).value()));
}

Result<ObjectList> DirectoryOrigin::list(const std::string& after, std::size_t limit, Deadline deadline) {
  using Names = std::vector<std::string>;
  DSEC_TRY(check_place(deadline));
  DSEC_ASSIGN(const Names folders, threads_->call<Names>([directory = directory_] { return names_in(directory); }, deadline));
  ObjectList out;
  for (const std::string& folder : folders) {
    if (!is_folder(folder) || folder < after.substr(0, folder.size())) continue;
    DSEC_ASSIGN(const Names files, threads_->call<Names>([directory = directory_ + "/" + folder] { return names_in(directory); }, deadline));
    for (const std::string& file : files) {
      const std::string path = folder + "/" + file;
      Result<ObjectName> name = parse_object_path(path);
      if (!name.ok() || path <= after) continue;
      if (out.names.size() == limit) {
        out.complete = false;
        return out;
      }
      out.names.push_back(std::move(name).value());
    }
  }
  return out;
}

Result<void> DirectoryOrigin::remove(const ObjectName& name, Deadline deadline) {
  DSEC_TRY(check_place(deadline));
  const auto unlink = [path = path(name)]() -> Result<bool> {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return store_error("remove " + path, errno);
    return true;
  };
  const Result<bool> done = threads_->call<bool>(unlink, deadline);
  if (!done.ok()) return done.error();
  return {};
}

}  // namespace dsec::origin
