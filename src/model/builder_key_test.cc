#include "model/builder_key.h"

#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <memory>

namespace dsec::model {
namespace {

const std::string kDigest = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
const std::string kOther = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

struct KeyPair {
  std::string secret;
  std::string open;
};

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long length = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<std::size_t>(length));
}

KeyPair make_keys(EVP_PKEY* made) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(made, &EVP_PKEY_free);
  const std::unique_ptr<BIO, decltype(&BIO_free)> secret(BIO_new(BIO_s_mem()), &BIO_free);
  const std::unique_ptr<BIO, decltype(&BIO_free)> open(BIO_new(BIO_s_mem()), &BIO_free);
  EXPECT_EQ(PEM_write_bio_PrivateKey(secret.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr), 1);
  EXPECT_EQ(PEM_write_bio_PUBKEY(open.get(), key.get()), 1);
  return {text_of(secret.get()), text_of(open.get())};
}

KeyPair make_ed25519() { return make_keys(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519")); }

TEST(BuilderKeyTest, TakesItsOwnSignatureOfTheLayer) {
  const KeyPair keys = make_ed25519();

  const Result<std::string> signature = sign_layer(keys.secret, kDigest);

  ASSERT_TRUE(signature.ok()) << signature.error().message();
  EXPECT_TRUE(check_layer_signature(keys.open, kDigest, *signature).ok());
}

TEST(BuilderKeyTest, TakesASignatureForWhatItWasMadeForOnly) {
  const KeyPair keys = make_ed25519();

  const Result<std::string> of_manifest = sign_manifest(keys.secret, kDigest);
  const Result<std::string> of_layer = sign_layer(keys.secret, kDigest);

  ASSERT_TRUE(of_manifest.ok()) << of_manifest.error().message();
  EXPECT_TRUE(check_manifest_signature(keys.open, kDigest, *of_manifest).ok());
  EXPECT_EQ(check_manifest_signature(keys.open, kDigest, *of_layer).error().code(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(check_layer_signature(keys.open, kDigest, *of_manifest).error().code(), ErrorCode::kPermissionDenied);
}

TEST(BuilderKeyTest, MakesKeysThatFit) {
  const std::string secret = make_builder_key();
  const std::string open = public_builder_key(secret).value();

  EXPECT_TRUE(check_layer_signature(open, kDigest, sign_layer(secret, kDigest).value()).ok());
  EXPECT_NE(make_builder_key(), secret);
  EXPECT_EQ(public_builder_key(open).error().code(), ErrorCode::kInvalidArgument);
}

TEST(BuilderKeyTest, SplitsAFileOfKeys) {
  const std::string one = make_ed25519().open;
  const std::string two = make_ed25519().open;

  EXPECT_EQ(split_public_keys("comment\n" + one + "\n" + two).value().size(), 2U);
  EXPECT_EQ(split_public_keys("").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(split_public_keys(one + "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----").error().code(), ErrorCode::kInvalidArgument);
}

// Made by `openssl pkeyutl -sign -rawin`: the form that other programs may rely on.
TEST(BuilderKeyTest, TakesASignatureThatOpensslMade) {
  const std::string key = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAcxl+1IiQA2OXeSkvT0yix0cBCpusEmX3e3dqpJ46WXw=\n-----END PUBLIC KEY-----\n";
  const std::string signature = "U5gyO2Ldv5NW/Ppn+SCT155P4/B4vpRzMoRnRSUB03LvGj0UJys0mokl7J3tR1F7+NKII2XIGqTcejbsUjqmCA==";

  const Result<void> checked = check_layer_signature(key, kDigest, signature);

  EXPECT_TRUE(checked.ok()) << checked.error().message();
}

TEST(BuilderKeyTest, RefusesAnotherLayerAnotherKeyAndEveryFlippedByte) {
  const KeyPair keys = make_ed25519();
  const std::string signature = sign_layer(keys.secret, kDigest).value();

  EXPECT_EQ(check_layer_signature(keys.open, kOther, signature).error().code(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(check_layer_signature(make_ed25519().open, kDigest, signature).error().code(), ErrorCode::kPermissionDenied);
  for (std::size_t i = 0; i < signature.size(); ++i) {
    std::string flipped = signature;
    flipped[i] = flipped[i] == 'A' ? 'B' : 'A';
    EXPECT_FALSE(check_layer_signature(keys.open, kDigest, flipped).ok()) << i;
  }
}

TEST(BuilderKeyTest, RefusesWhatIsNoKeyDigestOrSignature) {
  const KeyPair keys = make_ed25519();
  const KeyPair other_kind = make_keys(EVP_EC_gen("P-256"));
  const std::string signature = sign_layer(keys.secret, kDigest).value();

  for (const std::string& key : {std::string(), std::string("ed25519"), keys.secret, other_kind.open, std::string(5000, '-')})
    EXPECT_EQ(check_layer_signature(key, kDigest, signature).error().code(), ErrorCode::kInvalidArgument) << key;
  for (const std::string& key : {std::string(), keys.open, other_kind.secret})
    EXPECT_EQ(sign_layer(key, kDigest).error().code(), ErrorCode::kInvalidArgument) << key;
  EXPECT_EQ(check_layer_signature(keys.open, "sha256:ab", signature).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(check_layer_signature(keys.open, kDigest, "!").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(check_layer_signature(keys.open, kDigest, "AAAA").error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace dsec::model
