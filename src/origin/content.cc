#include "origin/content.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/encoding.h"
#include "erofs/digest.h"
#include "model/sha256.h"
#include "sys/file.h"

namespace dsec::origin {

Content Content::of_bytes(std::string bytes) {
  Content out;
  out.hex_ = to_hex(model::sha256(bytes));
  out.size_ = bytes.size();
  out.bytes_ = std::move(bytes);
  return out;
}

Result<Content> Content::of_file(int fd, std::string hex) {
  Content out;
  struct stat st{};
  if (::fstat(fd, &st) != 0) return errno_error("look at what is to be stored", errno);
  DSEC_ASSIGN(out.file_, sys::duplicate(fd));
  out.size_ = static_cast<std::uint64_t>(st.st_size);
  if (hex.empty()) {
    DSEC_ASSIGN(const std::string digest, erofs::digest_of_file(fd));
    hex = digest.substr(digest.find(':') + 1);
  }
  out.hex_ = std::move(hex);
  return out;
}

Result<void> Content::read(std::uint64_t offset, char* out, std::size_t length) const {
  if (offset > size_ || length > size_ - offset) return invalid_argument("read past the end of what is to be stored");
  if (!file_) {
    std::memcpy(out, bytes_.data() + offset, length);
    return {};
  }
  std::size_t done = 0;
  while (done < length) {
    const ssize_t n = ::pread(file_.get(), out + done, length - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("read what is to be stored", errno);
    if (n == 0) return Error(ErrorCode::kDataFault, "what is to be stored became shorter");
    done += static_cast<std::size_t>(n);
  }
  return {};
}

}  // namespace dsec::origin
