#include "net/authorities.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include <memory>

#include "sys/file.h"

namespace dsec::net {

namespace {
constexpr std::size_t kMaxBytes = 64 << 10;
}

Result<std::string> read_authorities(const std::string& path) {
  DSEC_ASSIGN(std::string text, sys::read_file(path, kMaxBytes));
  const std::unique_ptr<BIO, decltype(&BIO_free)> bytes(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free);
  std::size_t found = 0;
  ERR_clear_error();
  while (X509* const one = PEM_read_bio_X509(bytes.get(), nullptr, nullptr, nullptr)) {
    X509_free(one);
    ++found;
  }
  // At the end there is no further first line; anything else is a certificate that is none.
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (found == 0 || !at_end) return invalid_argument(path + " is not a PEM file of certificates");
  return text;
}

}  // namespace dsec::net
