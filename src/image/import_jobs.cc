#include "image/import_jobs.h"

#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace dsec::image {

Result<void> ImportJobs::prepare(const std::string& directory) {
  DSEC_TRY(sys::make_directories(directory, 0700));
  DSEC_ASSIGN(const sys::Fd opened, sys::open_at(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY));
  DSEC_ASSIGN(const std::vector<std::string> names, sys::list_directory(directory));
  for (const std::string& name : names) DSEC_TRY(sys::remove_tree_at(opened.get(), name));
  return {};
}

Result<sys::Fd> ImportJobs::make(int parent, const std::string& name) const {
  const std::string path = directory_ + "/" + name;
  if (::mkdirat(parent, name.c_str(), 0711) != 0) return errno_error("make " + path, errno);
  DSEC_ASSIGN(sys::Fd job, sys::open_at(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  if (::fchown(job.get(), first_id_, first_id_) != 0 || ::fchmod(job.get(), 0711) != 0) return errno_error("give away " + path, errno);
  return job;
}

Result<sys::Fd> open_product(int job, const std::string& name) {
  DSEC_ASSIGN(sys::Fd file, sys::open_at(job, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
  struct stat st{};
  if (::fstat(file.get(), &st) != 0) return errno_error("stat " + name, errno);
  if (!S_ISREG(st.st_mode) || st.st_nlink != 1) return Error(ErrorCode::kInternal, "the import worker made no regular file");
  return file;
}

Result<sys::Fd> open_product_in(int job, const std::string& directory, const std::string& path) {
  DSEC_ASSIGN(const sys::Fd root, sys::open_at(job, directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  open_how how{};
  how.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV;
  sys::Fd file(static_cast<int>(::syscall(SYS_openat2, root.get(), path.c_str(), &how, sizeof how)));
  struct stat st{};
  if (!file || ::fstat(file.get(), &st) != 0 || !S_ISREG(st.st_mode)) return invalid_argument("the archive lacks one of its layers");
  return file;
}

}  // namespace dsec::image
