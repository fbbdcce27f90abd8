#include "erofs/digest.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/encoding.h"

namespace dsec::erofs {

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  DSEC_CHECK(context_ != nullptr);
  DSEC_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::string_view bytes) {
  DSEC_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

std::string Sha256::raw() {
  std::string out(32, '\0');
  DSEC_CHECK(EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(out.data()), nullptr) == 1);
  return out;
}

std::string Sha256::hex() { return to_hex(raw()); }

Result<std::string> digest_of_file(int fd) {
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  off_t at = 0;
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  for (;;) {
    const ssize_t n = ::pread(fd, buffer.data(), buffer.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("read to hash", errno);
    if (n == 0) break;
    hash.update(std::string_view(buffer.data(), static_cast<std::size_t>(n)));
    at += n;
  }
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  return "sha256:" + hash.hex();
}

}  // namespace dsec::erofs
