#include "image/erofs_mount.h"

#include <linux/mount.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "erofs/format.h"

namespace dsec::image {

namespace {

int configure(int context, unsigned command, const char* key, const char* value) {
  return static_cast<int>(::syscall(SYS_fsconfig, context, command, key, value, 0));
}

// What the kernel wrote to the context's log: "e <filesystem>: <reason>".
std::string kernel_words(int context) {
  char line[256];
  std::string words;
  for (int i = 0; i < 8; i++) {
    const ssize_t n = ::read(context, line, sizeof line);
    if (n <= 0) break;
    if (!words.empty()) words += "; ";
    words.append(line, static_cast<std::size_t>(n));
  }
  while (!words.empty() && words.back() == '\n') words.pop_back();
  return words;
}

Result<sys::Fd> mount_with(const std::string& image_file, const std::vector<std::string>& devices, bool direct_io) {
  const sys::Fd context(static_cast<int>(::syscall(SYS_fsopen, "erofs", FSOPEN_CLOEXEC)));
  if (!context) return errno_error("open the EROFS filesystem type", errno);
  const auto add_device = [&](const std::string& device) { return configure(context.get(), FSCONFIG_SET_STRING, "device", device.c_str()) == 0; };
  const bool configured = configure(context.get(), FSCONFIG_SET_STRING, "source", image_file.c_str()) == 0 &&
                          std::all_of(devices.begin(), devices.end(), add_device) &&
                          configure(context.get(), FSCONFIG_SET_FLAG, "ro", nullptr) == 0 &&
                          (!direct_io || configure(context.get(), FSCONFIG_SET_FLAG, "directio", nullptr) == 0) &&
                          configure(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr) == 0;
  if (!configured) {
    Error error = errno_error("mount " + image_file, errno);
    if (const std::string words = kernel_words(context.get()); !words.empty()) error.add_context(words);
    return error;
  }
  sys::Fd mount(static_cast<int>(::syscall(SYS_fsmount, context.get(), FSMOUNT_CLOEXEC,
                                           MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)));
  if (!mount) return errno_error("make a mount of " + image_file, errno);
  return mount;
}

}  // namespace

Result<ErofsMount> mount_erofs(const std::string& image_file, const std::vector<std::string>& devices) {
  Result<sys::Fd> direct = mount_with(image_file, devices, true);
  if (direct.ok()) return ErofsMount{std::move(direct).value(), true};
  // An old kernel says EINVAL to the option, and a filesystem that cannot do
  // direct I/O refuses at the mount; a broken image fails again below.
  Result<sys::Fd> buffered = mount_with(image_file, devices, false);
  if (buffered.ok()) return ErofsMount{std::move(buffered).value(), false};
  return std::move(buffered).error();
}

bool is_erofs(int fd) {
  struct statfs fs{};
  return ::fstatfs(fd, &fs) == 0 && static_cast<std::uint32_t>(fs.f_type) == erofs::kMagic;
}

}  // namespace dsec::image
