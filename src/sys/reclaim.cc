#include "sys/reclaim.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <mutex>
#include <thread>

#include "sys/file.h"
#include "sys/process.h"

namespace dsec::sys {

namespace {

// About 10 ms of compression: how long a resume waits for a part at most.
constexpr std::uint64_t kPart = 4 << 20;
constexpr std::size_t kMapsLimit = 64 << 20;
constexpr auto kLook = std::chrono::milliseconds(1);

Result<void> check(const std::atomic<bool>& cancelled, Deadline deadline) {
  if (cancelled.load()) return Error(ErrorCode::kCancelled, "the memory is wanted again");
  if (deadline.passed()) return Error(ErrorCode::kDeadlineExceeded, "memory was given back for as long as that may take");
  return {};
}

std::uint64_t hex(std::string_view text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

// A signal that interrupts a call and does nothing else.
int interrupting_signal() {
  static std::once_flag once;
  static const int number = SIGRTMIN + 7;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    ::sigaction(number, &action, nullptr);
  });
  return number;
}

}  // namespace

std::vector<MemoryRange> swappable_ranges(std::string_view maps) {
  std::vector<MemoryRange> out;
  for (std::size_t at = 0; at < maps.size();) {
    std::size_t end = maps.find('\n', at);
    if (end == std::string_view::npos) end = maps.size();
    const std::string_view line = maps.substr(at, end - at);
    at = end + 1;
    // start-end rwxp offset major:minor inode   name
    const std::size_t dash = line.find('-'), space = line.find(' ');
    if (dash == std::string_view::npos || space == std::string_view::npos || dash > space) continue;
    if (line.size() < space + 5 || line.substr(space + 1, 3) == "---") continue;
    std::size_t field = space;
    for (int skipped = 0; skipped < 3 && field != std::string_view::npos; ++skipped) field = line.find(' ', field + 1);
    if (field == std::string_view::npos) continue;
    const std::string_view rest = line.substr(field + 1);
    const std::string_view inode = rest.substr(0, rest.find(' '));
    const std::string_view name = rest.substr(std::min(rest.find_first_not_of(' ', inode.size()), rest.size()));
    const bool written_private = line[space + 2] == 'w' && line[space + 4] == 'p';
    const bool memory = inode == "0" || name.starts_with("/memfd:") || name.starts_with("/SYSV") || name.starts_with("/dev/shm/") || name.starts_with("/dev/zero");
    if (name.starts_with("[v")) continue;  // vdso, vvar, vsyscall: the kernel's
    if (!memory && !written_private) continue;
    const std::uint64_t start = hex(line.substr(0, dash)), stop = hex(line.substr(dash + 1, space - dash - 1));
    if (stop > start) out.push_back({start, stop - start});
  }
  return out;
}

Result<void> advise_process(int pid, MemoryAdvice advice, const std::atomic<bool>& cancelled, Deadline deadline) {
  auto pidfd = open_pidfd(pid);
  if (!pidfd.ok()) return Error(ErrorCode::kNotFound, "the process has gone");
  auto maps = read_file("/proc/" + std::to_string(pid) + "/maps", kMapsLimit);
  if (!maps.ok()) return Error(ErrorCode::kNotFound, "the process has gone");
  const int number = advice == MemoryAdvice::kPageOut ? MADV_PAGEOUT : MADV_WILLNEED;
  for (const MemoryRange& range : swappable_ranges(*maps)) {
    for (std::uint64_t done = 0; done < range.size;) {
      DSEC_TRY(check(cancelled, deadline));
      const std::uint64_t length = std::min(kPart, range.size - done);
      iovec part{reinterpret_cast<void*>(range.start + done), length};
      if (::syscall(SYS_process_madvise, pidfd->get(), &part, 1, number, 0) < 0) {
        if (errno == ESRCH) return Error(ErrorCode::kNotFound, "the process has gone");
        if (errno == EPERM || errno == ENOSYS) return errno_error("advise a process's memory", errno);
        if (errno != EAGAIN && errno != EINTR) break;  // of this range nothing more can be had
      }
      done += length;
    }
  }
  return {};
}

Result<void> write_patiently(int dir, const std::string& path, const std::string& text, const std::atomic<bool>& cancelled, Deadline deadline) {
  DSEC_TRY(check(cancelled, deadline));
  DSEC_ASSIGN(const Fd file, open_at(dir, path, O_WRONLY));
  const int interrupt = interrupting_signal();
  std::atomic<bool> over{false};
  int error = 0;
  std::thread writer([&] {
    sigset_t allowed;
    ::sigemptyset(&allowed);
    ::sigaddset(&allowed, interrupt);
    ::pthread_sigmask(SIG_UNBLOCK, &allowed, nullptr);
    error = ::write(file.get(), text.data(), text.size()) < 0 ? errno : 0;
    over.store(true);
  });
  Result<void> outcome;
  while (!over.load()) {
    if (outcome.ok()) outcome = check(cancelled, deadline);
    // Once more each time: a signal before the call began would be lost.
    if (!outcome.ok()) ::pthread_kill(writer.native_handle(), interrupt);
    std::this_thread::sleep_for(kLook);
  }
  writer.join();
  DSEC_TRY(std::move(outcome));
  if (error != 0 && error != EAGAIN && error != EINTR) return errno_error("write " + path, error);
  return {};
}

}  // namespace dsec::sys
