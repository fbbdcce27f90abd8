#include "origin/peer_seal.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/stat.h>

#include <cerrno>
#include <charconv>
#include <memory>

#include "base/encoding.h"
#include "base/random.h"
#include "sys/file.h"

namespace dsec::origin {

namespace {

constexpr std::size_t kMaxFile = 4096;
constexpr std::size_t kSalt = 16;
constexpr std::size_t kTag = 16;
constexpr std::string_view kScheme = "Dsec-Peer ";
const unsigned char kZero[12] = {};  // each key seals one answer

std::string hmac(const std::string& key, std::string_view text) {
  std::string out(EVP_MAX_MD_SIZE, '\0');
  unsigned int length = 0;
  DSEC_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                  reinterpret_cast<unsigned char*>(out.data()), &length) != nullptr);
  out.resize(length);
  return out;
}

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }
unsigned char* bytes_of(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }

std::string request_text(std::string_view target, std::string_view stamp) {
  return "dsec peer request v1\n" + std::string(target) + "\n" + std::string(stamp);
}

std::string answer_key(const std::string& secret, std::string_view authorization, std::string_view salt) {
  return hmac(secret, "dsec peer answer v1\n" + std::string(authorization) + "\n" + std::string(salt));
}

using Cipher = std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)>;

std::int64_t ms_of(WallTime time) { return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count(); }

}  // namespace

Result<FleetKey> FleetKey::read(const std::string& file) {
  struct stat st{};
  if (::stat(file.c_str(), &st) != 0) return errno_error("fleet key " + file, errno);
  if ((st.st_mode & 077) != 0) return Error(ErrorCode::kPermissionDenied, "fleet key " + file + ": others than its owner may read it");
  DSEC_ASSIGN(std::string text, sys::read_file(file, kMaxFile).within("fleet key"));
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const std::size_t last = text.find_last_not_of(" \t\r\n");
  return of(first == std::string::npos ? std::string() : text.substr(first, last - first + 1)).within("fleet key " + file);
}

Result<FleetKey> FleetKey::of(std::string secret) {
  if (secret.size() < kLeastBytes) return invalid_argument("a fleet's key has " + std::to_string(kLeastBytes) + " bytes or more");
  return FleetKey(std::move(secret));
}

std::string FleetKey::sign(std::string_view target, WallTime now) const {
  SystemRandom random;
  const std::string stamp = std::to_string(ms_of(now)) + "." + to_hex(random.bytes(kSalt));
  return std::string(kScheme) + stamp + "." + to_hex(hmac(secret_, request_text(target, stamp)));
}

Result<void> FleetKey::check(std::string_view target, std::string_view authorization, WallTime now) const {
  const auto refused = [](const char* why) { return Error(ErrorCode::kUnauthenticated, why); };
  if (!authorization.starts_with(kScheme)) return refused("not signed with a fleet's key");
  authorization.remove_prefix(kScheme.size());
  const std::size_t dot = authorization.rfind('.');
  if (dot == std::string_view::npos) return refused("not signed with a fleet's key");
  const std::string_view stamp = authorization.substr(0, dot);
  const std::string_view given = authorization.substr(dot + 1);
  const std::string right = to_hex(hmac(secret_, request_text(target, stamp)));
  if (given.size() != right.size() || CRYPTO_memcmp(given.data(), right.data(), right.size()) != 0) return refused("signed with another fleet's key");
  std::int64_t at_ms = 0;
  std::from_chars(stamp.data(), stamp.data() + stamp.size(), at_ms);
  const std::int64_t apart = std::chrono::milliseconds(kClocksDiffer).count();
  const std::int64_t now_ms = ms_of(now);
  if (at_ms < now_ms - apart || at_ms > now_ms + apart) return refused("signed at another time: the clocks differ, or it is an old request");
  return {};
}

std::string FleetKey::seal(std::string_view bytes, std::string_view authorization) const {
  SystemRandom random;
  std::string out = random.bytes(kSalt);
  const std::string key = answer_key(secret_, authorization, out);
  out.resize(kSalt + bytes.size() + kTag);
  const Cipher cipher(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  int done = 0;
  DSEC_CHECK(EVP_EncryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, bytes_of(key), kZero) == 1);
  DSEC_CHECK(EVP_EncryptUpdate(cipher.get(), bytes_of(out) + kSalt, &done, bytes_of(bytes), static_cast<int>(bytes.size())) == 1);
  DSEC_CHECK(EVP_EncryptFinal_ex(cipher.get(), bytes_of(out) + kSalt + done, &done) == 1);
  DSEC_CHECK(EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, kTag, bytes_of(out) + kSalt + bytes.size()) == 1);
  return out;
}

Result<std::string> FleetKey::open(std::string_view sealed, std::string_view authorization) const {
  const Error wrong(ErrorCode::kDataFault, "the answer is not sealed with this fleet's key for this request");
  if (sealed.size() < kSealBytes) return wrong;
  const std::string_view salt = sealed.substr(0, kSalt);
  const std::string_view body = sealed.substr(kSalt, sealed.size() - kSealBytes);
  std::string tag(sealed.substr(sealed.size() - kTag));
  const std::string key = answer_key(secret_, authorization, salt);
  std::string out(body.size(), '\0');
  const Cipher cipher(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  int done = 0;
  DSEC_CHECK(EVP_DecryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, bytes_of(key), kZero) == 1);
  DSEC_CHECK(EVP_DecryptUpdate(cipher.get(), bytes_of(out), &done, bytes_of(body), static_cast<int>(body.size())) == 1);
  DSEC_CHECK(EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG, kTag, tag.data()) == 1);
  unsigned char rest[16];
  if (EVP_DecryptFinal_ex(cipher.get(), rest, &done) != 1) return wrong;
  return out;
}

static_assert(FleetKey::kSealBytes == kSalt + kTag);

}  // namespace dsec::origin
