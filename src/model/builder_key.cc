#include "model/builder_key.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <array>
#include <memory>

#include "base/encoding.h"
#include "model/layer.h"

namespace dsec::model {
namespace {

constexpr std::size_t kKeyLimit = 4096;
constexpr std::size_t kSignatureBytes = 64;

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Text = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Context = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

// No prompt for a password, and none is taken.
int no_password(char*, int, int, void*) { return -1; }

Result<Key> read_key(std::string_view pem, bool secret) {
  if (pem.size() > kKeyLimit) return invalid_argument("a builder key is a short PEM file");
  const Text text(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free);
  Key key(secret ? PEM_read_bio_PrivateKey(text.get(), nullptr, no_password, nullptr) : PEM_read_bio_PUBKEY(text.get(), nullptr, no_password, nullptr),
          &EVP_PKEY_free);
  ERR_clear_error();
  if (!key || EVP_PKEY_get_id(key.get()) != EVP_PKEY_ED25519)
    return invalid_argument(secret ? "not an Ed25519 private key in PEM" : "not an Ed25519 public key in PEM");
  return key;
}

constexpr std::string_view kLayer = "dsec layer v1\n";
constexpr std::string_view kManifest = "dsec manifest v1\n";

Result<std::string> message_of(std::string_view purpose, std::string_view digest) {
  if (!is_digest(digest)) return invalid_argument("not a digest: " + std::string(digest));
  return std::string(purpose) + std::string(digest);
}

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

Result<std::string> sign(std::string_view private_key_pem, std::string_view purpose, std::string_view digest) {
  DSEC_ASSIGN(const std::string message, message_of(purpose, digest));
  DSEC_ASSIGN(const Key key, read_key(private_key_pem, true));
  const Context context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  std::array<unsigned char, kSignatureBytes> signature{};
  std::size_t length = signature.size();
  if (EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) != 1 ||
      EVP_DigestSign(context.get(), signature.data(), &length, bytes_of(message), message.size()) != 1 || length != signature.size()) {
    ERR_clear_error();
    return Error(ErrorCode::kInternal, "the key does not sign");
  }
  return to_base64(std::string_view(reinterpret_cast<const char*>(signature.data()), length));
}

Result<void> check(std::string_view public_key_pem, std::string_view purpose, std::string_view digest, std::string_view signature) {
  DSEC_ASSIGN(const std::string message, message_of(purpose, digest));
  DSEC_ASSIGN(const Key key, read_key(public_key_pem, false));
  const Result<std::string> bytes = from_base64(signature);
  if (!bytes.ok() || bytes->size() != kSignatureBytes) return invalid_argument("a signature is 64 bytes in base64");
  const Context context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  const bool good = EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
                    EVP_DigestVerify(context.get(), bytes_of(*bytes), bytes->size(), bytes_of(message), message.size()) == 1;
  ERR_clear_error();
  if (!good) return Error(ErrorCode::kPermissionDenied, "the signature is not that key's for this layer");
  return {};
}

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long length = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<std::size_t>(length));
}

}  // namespace

std::string make_builder_key() {
  const Key key(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"), &EVP_PKEY_free);
  const Text text(BIO_new(BIO_s_mem()), &BIO_free);
  DSEC_CHECK(key && PEM_write_bio_PrivateKey(text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1);
  return text_of(text.get());
}

Result<std::string> public_builder_key(std::string_view private_key_pem) {
  DSEC_ASSIGN(const Key key, read_key(private_key_pem, true));
  const Text text(BIO_new(BIO_s_mem()), &BIO_free);
  DSEC_CHECK(PEM_write_bio_PUBKEY(text.get(), key.get()) == 1);
  return text_of(text.get());
}

static Result<void> check_public_key(const std::string& pem) {
  DSEC_ASSIGN(const Key key, read_key(pem, false));
  return {};
}

Result<std::vector<std::string>> split_public_keys(std::string_view text) {
  constexpr std::string_view kEnd = "-----END PUBLIC KEY-----";
  std::vector<std::string> out;
  for (std::size_t end = text.find(kEnd); end != std::string_view::npos; end = text.find(kEnd)) {
    out.emplace_back(text.substr(0, end + kEnd.size()));
    out.back() += '\n';
    text.remove_prefix(end + kEnd.size());
    DSEC_TRY(check_public_key(out.back()));
  }
  if (out.empty()) return invalid_argument("no public key in PEM");
  return out;
}

Result<std::string> sign_layer(std::string_view private_key_pem, std::string_view digest) { return sign(private_key_pem, kLayer, digest); }

Result<void> check_layer_signature(std::string_view public_key_pem, std::string_view digest, std::string_view signature) {
  return check(public_key_pem, kLayer, digest, signature);
}

Result<std::string> sign_manifest(std::string_view private_key_pem, std::string_view digest) { return sign(private_key_pem, kManifest, digest); }

Result<void> check_manifest_signature(std::string_view public_key_pem, std::string_view digest, std::string_view signature) {
  return check(public_key_pem, kManifest, digest, signature);
}

}  // namespace dsec::model
