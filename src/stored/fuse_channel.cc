#include "stored/fuse_channel.h"

#include <linux/fuse.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/errno_text.h"
#include "base/log.h"

namespace dsec::stored {

namespace {

// Of Linux 6.9; the headers that this is built with may be older.
constexpr std::uint64_t kHasResend = 1ull << 39;
constexpr int kNotifyResend = 7;

constexpr std::uint64_t kWantedFlags = FUSE_INIT_EXT | FUSE_ASYNC_READ | FUSE_ASYNC_DIO | FUSE_MAX_PAGES | FUSE_PARALLEL_DIROPS | kHasResend;
constexpr std::uint16_t kMaxBackground = 128;

}  // namespace

Result<void> FuseChannel::ask_again() const {
  fuse_out_header header{};
  header.len = sizeof header;
  header.error = kNotifyResend;
  if (::write(fd_, &header, sizeof header) < 0) return errno_error("ask the kernel for unanswered requests", errno);
  return {};
}

Result<std::optional<FuseRequest>> FuseChannel::next(std::span<char> buffer) const {
  while (true) {
    const ssize_t got = ::read(fd_, buffer.data(), buffer.size());
    if (got < 0) {
      // ENOENT: whoever asked was killed before the request could be read.
      if (errno == EINTR || errno == ENOENT || errno == EAGAIN) continue;
      if (errno == ENODEV) return std::optional<FuseRequest>();
      return errno_error("read a request of the kernel", errno);
    }
    fuse_in_header header;
    if (static_cast<std::size_t>(got) < sizeof header) return Error(ErrorCode::kInternal, "a request of the kernel is too short");
    std::memcpy(&header, buffer.data(), sizeof header);
    return std::optional(FuseRequest{.unique = header.unique,
                                     .opcode = header.opcode,
                                     .node = header.nodeid,
                                     .reader_pid = header.pid,
                                     .body = buffer.subspan(sizeof header, static_cast<std::size_t>(got) - sizeof header)});
  }
}

void FuseChannel::answer(std::uint64_t unique, std::string_view bytes) const { write(unique, 0, bytes); }

void FuseChannel::answer_error(std::uint64_t unique, int error_number) const { write(unique, error_number, {}); }

void FuseChannel::answer_init(const FuseRequest& request) const {
  fuse_init_in in{};
  std::memcpy(&in, request.body.data(), std::min(request.body.size(), sizeof in));
  fuse_init_out out{};
  out.major = FUSE_KERNEL_VERSION;
  out.minor = FUSE_KERNEL_MINOR_VERSION;
  // A kernel of another major version asks again with ours.
  if (in.major == FUSE_KERNEL_VERSION) {
    const std::uint64_t offered = in.flags | (static_cast<std::uint64_t>(in.flags2) << 32);
    const std::uint64_t flags = offered & kWantedFlags;
    out.flags = static_cast<std::uint32_t>(flags);
    out.flags2 = static_cast<std::uint32_t>(flags >> 32);
    out.max_readahead = in.max_readahead;
    out.max_background = kMaxBackground;
    out.congestion_threshold = kMaxBackground * 3 / 4;
    out.max_write = 4096;
    out.time_gran = 1;
    out.max_pages = kMaxReadBytes / 4096;
    if ((flags & kHasResend) == 0) log_warning("this kernel cannot repeat requests: a killed dsec-stored leaves readers waiting (Linux 6.9 can)");
  }
  answer_with(request.unique, out);
}

void FuseChannel::write(std::uint64_t unique, int error_number, std::string_view bytes) const {
  fuse_out_header header{};
  header.len = static_cast<std::uint32_t>(sizeof header + bytes.size());
  header.error = -error_number;
  header.unique = unique;
  const iovec parts[] = {{&header, sizeof header}, {const_cast<char*>(bytes.data()), bytes.size()}};
  if (::writev(fd_, parts, bytes.empty() ? 1 : 2) >= 0) return;
  // ENOENT: given up by who asked. ENODEV: the filesystem is gone.
  if (errno != ENOENT && errno != ENODEV) log_error("the kernel refused an answer", {{"error", errno_text(errno)}});
}

}  // namespace dsec::stored
