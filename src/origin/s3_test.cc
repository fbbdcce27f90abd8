// Signatures, addresses, credentials and answers; calls are held to the port by
// tests/contract/origin_contract_test.cc on a real server.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <ctime>
#include <fstream>

#include "origin/s3_location.h"
#include "origin/s3_text.h"

namespace dsec::origin {
namespace {

// The examples of the S3 documentation, made with its example key.
const S3Credentials kExample{.key_id = "AKIAIOSFODNN7EXAMPLE", .secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};

std::string signature_of(const S3Request& request) {
  std::tm day{.tm_mday = 24, .tm_mon = 4, .tm_year = 113};
  const WallTime when = std::chrono::system_clock::from_time_t(::timegm(&day));
  const net::HeaderList headers = s3_signed_headers(request, "examplebucket.s3.amazonaws.com", "us-east-1", kExample, when);
  const std::string& authorization = *net::find_header(headers, "Authorization");
  return authorization.substr(authorization.rfind('=') + 1);
}

TEST(S3SignatureTest, IsTheDocumentedOneForEachKindOfRequest) {
  EXPECT_EQ(signature_of({.path = "/test.txt", .headers = {{"Range", "bytes=0-9"}}}), "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_EQ(signature_of({.method = "PUT",
                          .path = "/test$file.text",
                          .headers = {{"Date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                          .body = "Welcome to Amazon S3."}),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  EXPECT_EQ(signature_of({.query = {{"lifecycle", ""}}}), "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(signature_of({.query = {{"prefix", "J"}, {"max-keys", "2"}}}), "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(S3SignatureTest, SendsTheTargetThatItSigns) {
  const S3Request request{.path = "/bucket/a b/ä+", .query = {{"start-after", "x/y z"}, {"list-type", "2"}}};

  EXPECT_EQ(s3_target(request), "/bucket/a%20b/%C3%A4%2B?list-type=2&start-after=x%2Fy%20z");
}

TEST(S3LocationTest, TakesAddressesApart) {
  const Result<S3Location> whole = parse_s3_location("s3://layers/some/folder?endpoint=https%3A%2F%2Fs3.example&region=eu-1&credentials=/etc/dsec/bucket");
  const Result<S3Location> least = parse_s3_location("s3://layers?endpoint=http://127.0.0.1:7070");

  ASSERT_TRUE(whole.ok()) << whole.error().message();
  EXPECT_EQ(whole->bucket + "|" + whole->prefix + "|" + whole->endpoint.host + "|" + whole->region + "|" + whole->credentials_file, "layers|some/folder/|s3.example|eu-1|/etc/dsec/bucket");
  ASSERT_TRUE(least.ok()) << least.error().message();
  EXPECT_EQ(least->bucket + "|" + least->prefix + "|" + least->endpoint.port, "layers||7070");
}

TEST(S3LocationTest, RefusesWhatIsNoneOrWouldSendKeysInTheClear) {
  for (const char* wrong : {"", "s3://", "s3://layers", "s3://Layers?endpoint=https://x", "s3://layers?endpoint=http://10.0.0.1:80", "s3://layers?endpoint=http://s3.example",
                            "s3://layers?endpoint=https://x/path", "s3://layers?endpoint", "s3://layers?endpoint=https://x&secret=1", "s3://layers?endpoint=%zz"})
    EXPECT_EQ(parse_s3_location(wrong).error().code(), ErrorCode::kInvalidArgument) << wrong;
}

class S3CredentialsTest : public testing::Test {
 protected:
  S3CredentialsTest() {
    std::string pattern = "/tmp/s3-credentials-XXXXXX";
    ::close(::mkstemp(pattern.data()));
    file_ = pattern;
  }
  ~S3CredentialsTest() override { ::unlink(file_.c_str()); }
  std::string file_;
};

TEST_F(S3CredentialsTest, ReadsTheDefaultSectionOfAFile) {
  std::ofstream(file_) << "[other]\naws_access_key_id=wrong\n[default]\n# mine\naws_access_key_id = id\r\naws_secret_access_key=s=cret\naws_session_token=token";

  const Result<S3Credentials> read = read_s3_credentials(file_);

  ASSERT_TRUE(read.ok()) << read.error().message();
  EXPECT_EQ(read->key_id + "|" + read->secret + "|" + read->session_token, "id|s=cret|token");
}

TEST_F(S3CredentialsTest, RefusesAFileThatOthersMayReadAndOneWithoutAKey) {
  std::ofstream(file_) << "aws_access_key_id=id\naws_secret_access_key=geheim";
  ::chmod(file_.c_str(), 0640);
  EXPECT_EQ(read_s3_credentials(file_).error().code(), ErrorCode::kPermissionDenied);
  ::chmod(file_.c_str(), 0600);
  std::ofstream(file_) << "aws_secret_access_key=geheim";
  const Result<S3Credentials> without = read_s3_credentials(file_);
  EXPECT_EQ(without.error().code(), ErrorCode::kUnauthenticated);
  EXPECT_EQ(without.error().message().find("geheim"), std::string::npos);
  EXPECT_EQ(read_s3_credentials("/nowhere/at/all").error().code(), ErrorCode::kNotFound);
}

TEST(S3TextTest, ReadsElementsAndTheirEscapes) {
  const std::string xml = "<R><Key>a&amp;b</Key><Key>&#65;&#x42;&lt;</Key><K>c</K><Key></Key></R>";

  EXPECT_EQ(texts_of(xml, "Key").value(), (std::vector<std::string>{"a&b", "AB<", ""}));
  EXPECT_EQ(first_text_of(xml, "K"), "c");
  EXPECT_EQ(first_text_of(xml, "None"), "");
}

TEST(S3TextTest, RefusesWhatItCannotRead) {
  for (const char* wrong : {"<Key>", "<Key>a</Ke>", "<Key>&nope;</Key>", "<Key>&amp</Key>", "<Key>&#0;</Key>", "<Key>&#300;</Key>", "<Key>&#x;</Key>"})
    EXPECT_EQ(texts_of(wrong, "Key").error().code(), ErrorCode::kDataFault) << wrong;
}

}  // namespace
}  // namespace dsec::origin
