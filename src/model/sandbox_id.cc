#include "model/sandbox_id.h"

#include <openssl/evp.h>

#include <memory>


namespace dsec::model {

// The block: unit (2 bytes), node (2), epoch (4), counter (8), big-endian. A
// counter stays below 2^40 (kMaxCounter): its 24 zero bits are what tells a
// sealed id from other text; the caller looks the route up in any case.
//
// 26 characters hold 130 bits: 128 of the block, then the generation. The text
// is made by hand because base32 of 17 bytes would be 28 characters.
namespace {
constexpr std::string_view kAlphabet = "abcdefghijklmnopqrstuvwxyz234567";
constexpr std::size_t kIdLength = 26;
constexpr std::uint64_t kMaxCounter = std::uint64_t{1} << 40;
using Block = std::array<unsigned char, 16>;

struct ContextDeleter {
  void operator()(EVP_CIPHER_CTX* c) const { EVP_CIPHER_CTX_free(c); }
};

Block crypt(const SandboxIdSeal::Key& key, const Block& in, bool encrypt) {
  const std::unique_ptr<EVP_CIPHER_CTX, ContextDeleter> context(EVP_CIPHER_CTX_new());
  DSEC_CHECK(context != nullptr);
  DSEC_CHECK(EVP_CipherInit_ex(context.get(), EVP_aes_128_ecb(), nullptr, key.data(), nullptr, encrypt ? 1 : 0) == 1);
  EVP_CIPHER_CTX_set_padding(context.get(), 0);
  Block out{};
  int n = 0;
  DSEC_CHECK(EVP_CipherUpdate(context.get(), out.data(), &n, in.data(), static_cast<int>(in.size())) == 1);
  DSEC_CHECK(n == static_cast<int>(out.size()));
  return out;
}

void put(unsigned char* at, std::uint64_t value, int bytes) {
  for (int i = bytes - 1; i >= 0; --i, value >>= 8) at[i] = static_cast<unsigned char>(value);
}

std::uint64_t get(const unsigned char* at, int bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value = value << 8 | at[i];
  return value;
}
}  // namespace

SandboxIdSeal::SandboxIdSeal(const Key& key, int generation) : key_(key), generation_(generation) {
  DSEC_CHECK(generation >= 0 && generation < 4);
}

std::string SandboxIdSeal::seal(const SandboxRoute& route) const {
  DSEC_CHECK(route.counter < kMaxCounter);
  Block plain{};
  put(plain.data(), route.unit, 2);
  put(plain.data() + 2, route.node, 2);
  put(plain.data() + 4, route.epoch, 4);
  put(plain.data() + 8, route.counter, 8);
  const Block sealed = crypt(key_, plain, true);
  std::string id;
  id.reserve(kIdLength);
  unsigned bits = 0;
  int held = 0;
  for (const unsigned char byte : sealed) {
    bits = bits << 8 | byte;
    for (held += 8; held >= 5; held -= 5) id.push_back(kAlphabet[bits >> (held - 5) & 31]);
  }
  // 128 = 25 * 5 + 3: three bits are left, the generation fills the last character.
  id.push_back(kAlphabet[(bits << 2 | static_cast<unsigned>(generation_)) & 31]);
  return id;
}

Result<SandboxRoute> SandboxIdSeal::open(std::string_view id) const {
  const auto refused = [] { return Error(ErrorCode::kNotFound, "no such sandbox"); };
  if (id.size() != kIdLength) return refused();
  Block sealed{};
  unsigned bits = 0;
  int held = 0;
  std::size_t filled = 0;
  for (std::size_t i = 0; i < kIdLength; ++i) {
    const std::size_t value = kAlphabet.find(id[i]);
    if (value == std::string_view::npos) return refused();
    bits = bits << 5 | static_cast<unsigned>(value);
    held += 5;
    if (held >= 8 && filled < sealed.size()) {
      sealed[filled++] = static_cast<unsigned char>(bits >> (held - 8));
      held -= 8;
    }
  }
  if (static_cast<int>(bits & 3) != generation_) return refused();
  const Block plain = crypt(key_, sealed, false);
  if (get(plain.data() + 8, 8) >= kMaxCounter) return refused();
  return SandboxRoute{.unit = static_cast<std::uint16_t>(get(plain.data(), 2)),
                      .node = static_cast<std::uint16_t>(get(plain.data() + 2, 2)),
                      .epoch = static_cast<std::uint32_t>(get(plain.data() + 4, 4)),
                      .counter = get(plain.data() + 8, 8)};
}

}  // namespace dsec::model
