#include "agent/devices.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <termios.h>

#include <cerrno>

namespace dsec::agent {
namespace {

constexpr gid_t kTerminalGroup = 5;  // Debian's tty
constexpr mode_t kTerminalMode = 0620;

Result<sys::Fd> open_device(const char* path, int flags, dev_t number) {
  sys::Fd fd(::open(path, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd) return errno_error(path, errno);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return errno_error(path, errno);
  if (!S_ISCHR(status.st_mode) || status.st_rdev != number) {
    return Error(ErrorCode::kUnsupported, std::string(path) + " is not the device of that name", ENODEV);
  }
  return fd;
}

}  // namespace

Result<sys::Fd> open_null_device() { return open_device("/dev/null", O_RDWR, makedev(1, 3)); }

Result<TerminalPair> open_terminal(uid_t owner, unsigned short rows, unsigned short columns) {
  auto master = open_device("/dev/pts/ptmx", O_RDWR, makedev(5, 2));
  if (!master.ok()) master = open_device("/dev/ptmx", O_RDWR, makedev(5, 2));
  if (!master.ok()) return std::move(master).error();

  const int unlocked = 0;
  if (::ioctl(master->get(), TIOCSPTLCK, &unlocked) != 0) return errno_error("unlock the terminal", errno);
  sys::Fd slave(::ioctl(master->get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!slave) return errno_error("open the terminal's slave", errno);
  if (::fchown(slave.get(), owner, kTerminalGroup) != 0 && ::fchown(slave.get(), owner, static_cast<gid_t>(-1)) != 0) {
    return errno_error("give the terminal to its user", errno);
  }
  ::fchmod(slave.get(), kTerminalMode);
  const winsize size{.ws_row = rows, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  ::ioctl(master->get(), TIOCSWINSZ, &size);
  return TerminalPair{std::move(*master), std::move(slave)};
}

Result<sys::Fd> open_proc() {
  sys::Fd fd(::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  struct statfs status {};
  if (!fd || ::fstatfs(fd.get(), &status) != 0) return errno_error("/proc", errno);
  if (status.f_type != PROC_SUPER_MAGIC) return Error(ErrorCode::kUnsupported, "/proc is no procfs", ENODEV);
  return fd;
}

}  // namespace dsec::agent
