#include "model/sha256.h"

#include <openssl/evp.h>

#include <memory>

#include "base/error.h"

namespace dsec::model {

namespace {

struct Free {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_MD_CTX, Free>;

// OpenSSL looks an algorithm up by name for each digest, which takes longer than a
// short digest does: a context that has found it once is copied from then on.
Context begun() {
  Context context(EVP_MD_CTX_new());
  DSEC_CHECK(context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  return context;
}

}  // namespace

std::string sha256(std::string_view bytes) {
  thread_local const Context fresh = begun();
  thread_local const Context context = begun();
  std::string digest(32, '\0');
  DSEC_CHECK(EVP_MD_CTX_copy_ex(context.get(), fresh.get()) == 1 && EVP_DigestUpdate(context.get(), bytes.data(), bytes.size()) == 1 &&
             EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr) == 1);
  return digest;
}

}  // namespace dsec::model
