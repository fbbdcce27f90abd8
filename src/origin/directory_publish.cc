// How a directory origin publishes: each system call on a thread of its own,
// with a buffer that the thread owns.
#include <linux/fs.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/encoding.h"
#include "base/fail_point.h"
#include "base/random.h"
#include "origin/directory_origin.h"
#include "origin/open_file.h"
#include "origin/publish_rules.h"
#include "sys/file.h"

namespace dsec::origin {

namespace {

constexpr std::uint64_t kPart = 4 << 20;

using Done = bool;  // of calls that have nothing to tell

Result<Done> make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) return store_error("make " + path, errno);
  return true;
}

Result<Done> sync_folder(const std::string& path) {
  const sys::Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return store_error("open " + path, errno);
  // EINVAL: a file system that keeps its directories by other means.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return store_error("sync " + path, errno);
  return true;
}

// kConflict when `to` is taken; `from` may remain as a second name.
Result<Done> rename_to_new(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) return store_error("rename to " + to, errno);
  if (::link(from.c_str(), to.c_str()) == 0) return true;
  if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS)
    return Error(ErrorCode::kUnsupported, "this file system can neither rename without replacing nor link", errno);
  return store_error("link to " + to, errno);
}

Result<void> nothing(const Result<Done>& done) {
  if (!done.ok()) return done.error();
  return {};
}

}  // namespace

Result<std::shared_ptr<OpenFile>> DirectoryOrigin::write_incoming(const std::string& path, const Content& content, Deadline deadline) {
  using Opened = std::shared_ptr<OpenFile>;
  DSEC_ASSIGN(const Opened file, threads_->call<Opened>([path, threads = std::weak_ptr(threads_)] { return OpenFile::create(path, threads); }, deadline));
  for (std::uint64_t at = 0; at < content.size(); at += kPart) {
    const auto part = std::make_shared<Buffer>(std::min(kPart, content.size() - at));
    DSEC_TRY(content.read(at, part->data(), part->size()));
    DSEC_TRY(fail_point("origin.directory.write"));
    const auto write = [file, part, at]() -> Result<Done> {
      DSEC_TRY(file->write(at, part->view()));
      return true;
    };
    DSEC_TRY(nothing(threads_->call<Done>(write, deadline)));
  }
  const auto sync = [file]() -> Result<Done> {
    DSEC_TRY(file->sync());
    return true;
  };
  DSEC_TRY(nothing(threads_->call<Done>(sync, deadline)));
  return file;
}

Result<void> DirectoryOrigin::give_name(const std::string& incoming, const ObjectName& name, Deadline deadline) {
  const std::string to = path(name);
  const std::string folder = to.substr(0, to.rfind('/'));
  const auto rename = [incoming, to, folder, directory = directory_]() -> Result<Done> {
    DSEC_TRY(nothing(make_folder(folder)));
    DSEC_TRY(nothing(rename_to_new(incoming, to)));
    DSEC_TRY(nothing(sync_folder(folder)));
    return sync_folder(directory);
  };
  return nothing(threads_->call<Done>(rename, deadline));
}

Result<void> DirectoryOrigin::publish(const ObjectName& name, const Content& content, Deadline deadline) {
  DSEC_TRY(check_publish(name, content));
  DSEC_TRY(check_place(deadline));
  Result<void> done = compare_with_present(*this, name, content, deadline);
  if (done.ok() || done.error().code() != ErrorCode::kNotFound) return done;

  const std::string incoming_folder = directory_ + kIncoming;
  DSEC_TRY(nothing(threads_->call<Done>([incoming_folder] { return make_folder(incoming_folder); }, deadline)));
  SystemRandom random;
  const std::string file_name = name.path().substr(name.path().rfind('/') + 1);
  const std::string incoming = incoming_folder + "/" + file_name + "." + to_hex(random.bytes(16));
  const Result<std::shared_ptr<OpenFile>> written = write_incoming(incoming, content, deadline);
  done = written.ok() ? give_name(incoming, name, deadline) : Result<void>(written.error());
  // Of a rename nothing is left; else it is nobody's.
  threads_->post([incoming] { ::unlink(incoming.c_str()); });
  if (!done.ok() && done.error().code() == ErrorCode::kConflict) return compare_with_present(*this, name, content, deadline);
  return done;
}

}  // namespace dsec::origin
