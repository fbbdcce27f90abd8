// Every byte of a small image is changed in several ways. Either the checker
// refuses what comes out, or all of it can be read and differs from the
// original in the one inode that was hit: no accepted lie reaches further.
#include <gtest/gtest.h>

#include <map>

#include "erofs/checker.h"
#include "erofs/hand_made_image.h"
#include "erofs/image_text.h"
#include "erofs/reader.h"

namespace dsec::erofs {
namespace {

using test::HandMadeImage;

std::map<std::uint64_t, std::string> read_all(const std::string& metadata, const std::string& data) {
  std::vector<std::unique_ptr<Source>> devices;
  devices.push_back(std::make_unique<MemorySource>(data));
  Reader reader = Reader::open(std::make_unique<MemorySource>(metadata), std::move(devices)).value();
  Result<std::map<std::uint64_t, std::string>> all = test::inode_texts(reader);
  EXPECT_TRUE(all.ok()) << all.error().message();
  return all.ok() ? *all : std::map<std::uint64_t, std::string>();
}

std::size_t differences(const std::map<std::uint64_t, std::string>& a, const std::map<std::uint64_t, std::string>& b) {
  if (a.size() != b.size()) return a.size() + b.size();
  std::size_t count = 0;
  for (const auto& [nid, text] : a) {
    const auto other = b.find(nid);
    count += other == b.end() || other->second != text;
  }
  return count;
}

TEST(MutationTest, AnAcceptedChangeOfAByteReachesOneInodeOnly) {
  const HandMadeImage image = test::rich_image(20'000);
  const std::map<std::uint64_t, std::string> original = read_all(image.metadata(), image.data());
  std::size_t accepted = 0;
  std::size_t refused = 0;
  for (std::size_t offset = 0; offset < image.metadata().size(); ++offset) {
    for (const int change : {0x01, 0x80, 0xff}) {
      std::string metadata = image.metadata();
      metadata[offset] = static_cast<char>(metadata[offset] ^ change);
      test::fix_checksum(metadata);
      if (metadata == image.metadata()) continue;  // a byte of the checksum

      const Verdict verdict = check_image(std::make_unique<MemorySource>(metadata)).value();

      refused += !verdict.sound();
      if (!verdict.sound()) continue;
      accepted++;
      EXPECT_LE(differences(original, read_all(metadata, image.data())), 1u) << "byte " << offset << " ^ " << change;
    }
  }
  RecordProperty("accepted", static_cast<int>(accepted));
  RecordProperty("refused", static_cast<int>(refused));
  // Times, owners, permissions and inline content may say anything.
  EXPECT_GT(accepted, 1000u);
  EXPECT_GT(refused, 3 * accepted);
}

}  // namespace
}  // namespace dsec::erofs
