#include "sys/swap.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/errno_text.h"
#include "sys/file.h"

#include <linux/fs.h>

namespace dsec::sys {

namespace {

constexpr std::uint64_t kPage = 4096;
constexpr const char* kZramControl = "/sys/class/zram-control";
// Higher goes first.
constexpr int kZramPriority = 100;
constexpr int kFilePriority = 10;

std::string file_of(const std::string& directory) { return directory + "/swap"; }
// Holds the number of the zram device that was made for this directory.
std::string mark_of(const std::string& directory) { return directory + "/zram"; }

// Version 1 of the kernel's format: one header page, its magic at the end.
Result<void> write_header(const std::string& path, std::uint64_t bytes) {
  const std::uint64_t pages = bytes / kPage;
  if (pages < 16) return invalid_argument("a swap area has at least 64 KiB");
  std::string page(kPage, '\0');
  const std::uint32_t version = 1;
  const auto last = static_cast<std::uint32_t>(std::min<std::uint64_t>(pages - 1, UINT32_MAX));
  std::memcpy(page.data() + 1024, &version, sizeof version);
  std::memcpy(page.data() + 1028, &last, sizeof last);
  page.replace(kPage - 10, 10, "SWAPSPACE2");
  DSEC_ASSIGN(const Fd out, open_at(AT_FDCWD, path, O_WRONLY));
  DSEC_TRY(write_all(out.get(), page));
  if (::fsync(out.get()) < 0) return errno_error("write " + path, errno);
  return {};
}

Result<void> on(const std::string& path, int priority) {
  if (::swapon(path.c_str(), SWAP_FLAG_PREFER | (priority & SWAP_FLAG_PRIO_MASK)) == 0) return {};
  if (errno == EINVAL) return Error(ErrorCode::kUnsupported, path + ": its file system takes no swap file", EINVAL);
  if (errno == EPERM) return Error(ErrorCode::kUnsupported, path + ": this process may not switch swap on", EPERM);
  return errno_error("switch swap on: " + path, errno);
}

Result<void> off(const std::string& path) {
  if (::swapoff(path.c_str()) == 0 || errno == EINVAL || errno == ENOENT) return {};  // is none
  if (errno == ENOMEM) return Error(ErrorCode::kExhausted, path + ": what is in it does not fit into memory", ENOMEM);
  return errno_error("switch swap off: " + path, errno);
}

const SwapArea* find(const std::vector<SwapArea>& areas, const std::string& path) {
  const auto found = std::find_if(areas.begin(), areas.end(), [&](const SwapArea& area) { return area.path == path; });
  return found == areas.end() ? nullptr : &*found;
}

bool nearly(std::uint64_t one, std::uint64_t other) { return std::max(one, other) - std::min(one, other) <= 16 * kPage; }

// The kernel counts an area without its header.
std::string other_size(const SwapArea& area, std::uint64_t wished) {
  return area.path + " is on with " + std::to_string((area.bytes + kPage) >> 20) + " MiB, not " + std::to_string(wished >> 20) +
         ": it changes its size when the node is stopped and started again";
}

Result<void> make_file(const std::string& path, std::uint64_t bytes) {
  (void)::unlink(path.c_str());
  DSEC_ASSIGN(const Fd file, open_at(AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL, 0600));
  int flags = 0;
  // btrfs: a swap file may not be copied on write. Others do not know the flag.
  if (::ioctl(file.get(), FS_IOC_GETFLAGS, &flags) == 0) {
    flags |= FS_NOCOW_FL;
    (void)::ioctl(file.get(), FS_IOC_SETFLAGS, &flags);
  }
  if (const int error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)); error != 0) {
    (void)::unlink(path.c_str());
    if (error == ENOSPC) return Error(ErrorCode::kExhausted, path + ": the disk has no room for it", error);
    return errno_error("make " + path, error);
  }
  return {};
}

Result<std::string> make_zram(const std::string& directory, std::uint64_t bytes) {
  Result<std::string> number = read_file(std::string(kZramControl) + "/hot_add", 32);
  if (!number.ok()) return Error(ErrorCode::kUnsupported, "this kernel has no zram (module zram)", number.error().error_number());
  while (!number->empty() && number->back() == '\n') number->pop_back();
  // Before it has any content: what dies in between is found by the mark.
  DSEC_TRY(replace_file(mark_of(directory), *number, 0600));
  const std::string device = "/dev/zram" + *number, controls = "/sys/block/zram" + *number;
  // The fastest that the kernel has; its default where it has not.
  (void)write_at(AT_FDCWD, controls + "/comp_algorithm", "lz4");
  DSEC_TRY(write_at(AT_FDCWD, controls + "/disksize", std::to_string(bytes)));
  DSEC_TRY(write_header(device, bytes));
  return device;
}

std::string marked_device(const std::string& directory) {
  Result<std::string> number = read_file(mark_of(directory), 32);
  if (!number.ok() || number->empty() || number->find_first_not_of("0123456789") != std::string::npos) return "";
  return "/dev/zram" + *number;
}

Result<void> remove_zram(const std::string& directory) {
  const std::string device = marked_device(directory);
  if (device.empty()) return {};
  DSEC_TRY(off(device));
  const std::string number = device.substr(std::strlen("/dev/zram"));
  // One that somebody else made since then has another user: the kernel says busy.
  if (::access(("/sys/block/zram" + number).c_str(), F_OK) == 0) {
    DSEC_TRY(write_at(AT_FDCWD, "/sys/block/zram" + number + "/reset", "1"));
    DSEC_TRY(write_at(AT_FDCWD, std::string(kZramControl) + "/hot_remove", number));
  }
  if (::unlink(mark_of(directory).c_str()) < 0 && errno != ENOENT) return errno_error("remove " + mark_of(directory), errno);
  return {};
}

}  // namespace

std::vector<SwapArea> swap_areas(std::string_view text) {
  std::vector<SwapArea> out;
  std::size_t at = text.find('\n');  // behind the heading
  while (at != std::string_view::npos && at + 1 < text.size()) {
    const std::size_t end = std::min(text.find('\n', at + 1), text.size());
    std::string_view line = text.substr(at + 1, end - at - 1);
    at = end;
    std::vector<std::string> fields;
    while (!line.empty()) {
      const std::size_t first = line.find_first_not_of(" \t");
      if (first == std::string_view::npos) break;
      line.remove_prefix(first);
      const std::size_t stop = std::min(line.find_first_of(" \t"), line.size());
      fields.emplace_back(line.substr(0, stop));
      line.remove_prefix(stop);
    }
    if (fields.size() < 4) continue;
    const auto kib = [](const std::string& field) { return std::strtoull(field.c_str(), nullptr, 10) << 10; };
    // The kernel writes a space in a path as \040.
    std::string path;
    for (std::size_t i = 0; i < fields[0].size(); ++i) {
      if (fields[0][i] == '\\' && i + 3 < fields[0].size()) {
        path += static_cast<char>(std::strtol(fields[0].substr(i + 1, 3).c_str(), nullptr, 8));
        i += 3;
      } else {
        path += fields[0][i];
      }
    }
    out.push_back({std::move(path), kib(fields[2]), kib(fields[3])});
  }
  return out;
}

std::vector<SwapArea> swap_areas() {
  const Result<std::string> text = read_file("/proc/swaps");
  return text.ok() ? swap_areas(*text) : std::vector<SwapArea>();
}

Result<std::vector<std::string>> switch_swap_on(const SwapWish& wish) {
  std::vector<std::string> notes;
  DSEC_TRY(make_directories(wish.directory, 0700));
  const std::vector<SwapArea> areas = swap_areas();
  if (wish.zram_bytes > 0) {
    const std::uint64_t bytes = wish.zram_bytes / kPage * kPage;
    const std::string device = marked_device(wish.directory);
    const SwapArea* there = device.empty() ? nullptr : find(areas, device);
    if (there != nullptr) {
      if (!nearly(there->bytes, bytes)) notes.push_back(other_size(*there, bytes));
    } else {
      DSEC_TRY(remove_zram(wish.directory));  // half made
      DSEC_ASSIGN(const std::string made, make_zram(wish.directory, bytes));
      DSEC_TRY(on(made, kZramPriority));
    }
  }
  if (wish.file_bytes > 0) {
    const std::uint64_t bytes = wish.file_bytes / kPage * kPage;
    const std::string path = file_of(wish.directory);
    if (const SwapArea* there = find(areas, path); there != nullptr) {
      if (!nearly(there->bytes, bytes)) notes.push_back(other_size(*there, bytes));
    } else {
      DSEC_TRY(make_file(path, bytes));
      DSEC_TRY(write_header(path, bytes));
      if (Result<void> switched = on(path, kFilePriority); !switched.ok()) {
        (void)::unlink(path.c_str());
        return std::move(switched).error();
      }
    }
  }
  return notes;
}

Result<void> switch_swap_off(const std::string& directory) {
  const std::string path = file_of(directory);
  if (::access(path.c_str(), F_OK) == 0) {
    DSEC_TRY(off(path));
    if (::unlink(path.c_str()) < 0 && errno != ENOENT) return errno_error("remove " + path, errno);
  }
  return remove_zram(directory);
}

std::uint64_t zram_resident_bytes(const std::string& device) {
  if (!device.starts_with("/dev/zram")) return 0;
  const Result<std::string> text = read_file("/sys/block/" + device.substr(5) + "/mm_stat", 512);
  if (!text.ok()) return 0;
  // orig_data_size compr_data_size mem_used_total …
  std::size_t at = 0;
  for (int field = 0; field < 2; ++field) {
    at = text->find_first_not_of(' ', at);
    if (at == std::string::npos) return 0;
    at = text->find(' ', at);
    if (at == std::string::npos) return 0;
  }
  at = text->find_first_not_of(' ', at);
  return at == std::string::npos ? 0 : std::strtoull(text->c_str() + at, nullptr, 10);
}

}  // namespace dsec::sys
