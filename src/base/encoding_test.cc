#include "base/encoding.h"

#include <gtest/gtest.h>

namespace dsec {
namespace {

TEST(EncodingTest, EveryLengthComesBackAsItWas) {
  std::string bytes;
  for (int n = 0; n < 70; n++) {
    EXPECT_EQ(from_hex(to_hex(bytes)).value(), bytes);
    EXPECT_EQ(from_base64(to_base64(bytes)).value(), bytes);
    EXPECT_EQ(from_base32(to_base32(bytes)).value(), bytes);
    bytes += static_cast<char>(n * 37 + 200);
  }
}

TEST(EncodingTest, WritesTheVectorsOfTheStandard) {
  EXPECT_EQ(to_base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(to_base64("foob"), "Zm9vYg==");
  EXPECT_EQ(to_base32("foobar"), "mzxw6ytboi");
  EXPECT_EQ(to_hex("\xff\x01"), "ff01");
}

TEST(EncodingTest, RefusesForeignCharactersAndCutText) {
  EXPECT_FALSE(from_hex("0g").ok());
  EXPECT_FALSE(from_hex("0").ok());
  EXPECT_FALSE(from_base64("Zm9v*").ok());
  EXPECT_FALSE(from_base64("Z").ok());
  EXPECT_FALSE(from_base32("A").ok());
}

TEST(EncodingTest, ReplacesOnlyMalformedUtf8) {
  bool lossy = false;
  EXPECT_EQ(to_utf8("gr\xc3\xbcn \xf0\x9f\x98\x80", &lossy), "gr\xc3\xbcn \xf0\x9f\x98\x80");
  EXPECT_FALSE(lossy);
  EXPECT_EQ(to_utf8("a\xff" "b\xc3", &lossy), "a\xef\xbf\xbd" "b\xef\xbf\xbd");
  EXPECT_TRUE(lossy);
  EXPECT_FALSE(is_utf8("\xed\xa0\x80"));  // a surrogate
  EXPECT_FALSE(is_utf8("\xc0\xaf"));      // overlong
}

}  // namespace
}  // namespace dsec
