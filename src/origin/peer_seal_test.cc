#include "origin/peer_seal.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "origin/peer_client.h"

namespace dsec::origin {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

FleetKey key(char of = 'k') { return FleetKey::of(std::string(FleetKey::kLeastBytes, of)).value(); }
const WallTime kNow{seconds(1'800'000'000)};
constexpr const char* kTarget = "/v1/chunks/abc?first=1&count=2";

TEST(FleetKeyTest, KnowsItsOwnRequestsForMinutesAndNoOthers) {
  const std::string signature = key().sign(kTarget, kNow);

  EXPECT_TRUE(key().check(kTarget, signature, kNow).ok());
  EXPECT_TRUE(key().check(kTarget, signature, kNow + minutes(4)).ok());
  EXPECT_TRUE(key().check(kTarget, signature, kNow - minutes(4)).ok());
  EXPECT_EQ(key().check(kTarget, signature, kNow + minutes(6)).error().code(), ErrorCode::kUnauthenticated);
  EXPECT_EQ(key().check(kTarget, signature, kNow - minutes(6)).error().code(), ErrorCode::kUnauthenticated);
  EXPECT_FALSE(key().check("/v1/chunks/abc?first=1&count=3", signature, kNow).ok());
  EXPECT_FALSE(key('x').check(kTarget, signature, kNow).ok());
  std::string later = signature;
  later[sizeof("Dsec-Peer ") - 1]++;  // another time, the same signature
  EXPECT_FALSE(key().check(kTarget, later, kNow).ok());
  for (const char* wrong : {"", "Dsec-Peer ", "Dsec-Peer 1.2.3", "Bearer x", "Dsec-Peer ..", "Dsec-Peer ."}) EXPECT_FALSE(key().check(kTarget, wrong, kNow).ok()) << wrong;
}

TEST(FleetKeyTest, WhatIsSealedIsOpenedForItsRequestAlone) {
  const std::string request = key().sign(kTarget, kNow);
  const std::string bytes(100'000, 'b');
  const std::string sealed = key().seal(bytes, request);

  EXPECT_EQ(sealed.size(), bytes.size() + FleetKey::kSealBytes);
  EXPECT_EQ(sealed.find("bbbbbbbb"), std::string::npos);
  EXPECT_EQ(key().open(sealed, request).value(), bytes);
  EXPECT_EQ(key().open(key().seal("", request), request).value(), "");
  EXPECT_NE(key().seal(bytes, request), sealed) << "no key is used twice";
  EXPECT_EQ(key().open(sealed, key().sign(kTarget, kNow)).error().code(), ErrorCode::kDataFault);
  EXPECT_FALSE(key('x').open(sealed, request).ok());
  for (const std::size_t at : {std::size_t{0}, std::size_t{20}, sealed.size() - 1}) {
    std::string altered = sealed;
    altered[at] = static_cast<char>(altered[at] ^ 1);
    EXPECT_FALSE(key().open(altered, request).ok()) << at;
  }
  EXPECT_FALSE(key().open(sealed.substr(0, sealed.size() - 1), request).ok());
  EXPECT_FALSE(key().open("short", request).ok());
}

TEST(FleetKeyTest, IsReadFromAFileThatNobodyElseMayRead) {
  std::string path = "/tmp/fleet-key-XXXXXX";
  ::close(::mkstemp(path.data()));
  std::ofstream(path) << std::string(FleetKey::kLeastBytes, 'k') << "\n";

  EXPECT_TRUE(FleetKey::read(path)->check(kTarget, key().sign(kTarget, kNow), kNow).ok()) << "the end of the line is not of the key";
  ::chmod(path.c_str(), 0640);
  EXPECT_EQ(FleetKey::read(path).error().code(), ErrorCode::kPermissionDenied);
  ::chmod(path.c_str(), 0600);
  std::ofstream(path) << "short";
  EXPECT_EQ(FleetKey::read(path).error().code(), ErrorCode::kInvalidArgument);
  ::unlink(path.c_str());
  EXPECT_EQ(FleetKey::read(path).error().code(), ErrorCode::kNotFound);
}

TEST(PeersTest, AreAddressesAndNoNames) {
  const auto two = parse_peers("http://10.0.0.7:7790,https://[fd00::1]");
  ASSERT_TRUE(two.ok()) << two.error().message();
  EXPECT_EQ((*two)[0].authority() + " " + (*two)[1].authority(), "10.0.0.7:7790 [fd00::1]");
  for (const char* wrong : {"", ",", "http://node:7790", "10.0.0.7:7790", "http://10.0.0.7,,", "ftp://10.0.0.7", "http://10.0.0.7/path"}) EXPECT_FALSE(parse_peers(wrong).ok()) << wrong;
}

}  // namespace
}  // namespace dsec::origin
