#include "edge/output_stream.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace dsec::edge {
namespace {

constexpr std::string_view kOp = "abcdefghijklmnop";

class OutputStreamTest : public ::testing::Test {
 protected:
  OutputStreamTest() {
    char name[] = "/tmp/dsec-spool-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~OutputStreamTest() override { std::filesystem::remove_all(directory_); }

  static std::string read_all(const OutputStream& stream, const OutputSpool& spool) {
    std::string out;
    for (std::uint64_t offset = 0;;) {
      offset = stream.next_readable(offset);
      const auto piece = stream.at(offset, 7);
      if (!piece) return out;
      const std::string bytes = piece->chunk ? spool.read(*piece->chunk, piece->offset, 7).value() : piece->bytes;
      out += bytes;
      offset = piece->offset + bytes.size();
    }
  }

  std::string directory_;
};

TEST_F(OutputStreamTest, ReadsAcrossSpoolAndMemoryByteForByte) {
  OutputSpool spool(directory_ + "/s", 1 << 20);
  OutputStream stream(1);
  std::uint64_t room = 1 << 20;

  stream.take(0, "first part, ", room);
  ASSERT_TRUE(stream.spill(spool, kOp).ok());
  stream.take(12, "second part, ", room);
  ASSERT_TRUE(stream.spill(spool, kOp).ok());
  stream.take(25, "tail", room);

  EXPECT_EQ(read_all(stream, spool), "first part, second part, tail");
  EXPECT_EQ(stream.acknowledged(), 25u);
  EXPECT_EQ(stream.total(), 29u);
}

TEST_F(OutputStreamTest, BytesThatAreSentAgainAreTakenOnce) {
  OutputSpool spool(directory_ + "/s", 1 << 20);
  OutputStream stream(1);
  std::uint64_t room = 1 << 20;

  stream.take(0, "abcdef", room);
  stream.take(0, "abc", room);
  stream.take(4, "efgh", room);

  EXPECT_EQ(read_all(stream, spool), "abcdefgh");
}

TEST_F(OutputStreamTest, PastTheLimitBytesAreCountedAndAcknowledged) {
  OutputSpool spool(directory_ + "/s", 1 << 20);
  OutputStream stream(1);
  std::uint64_t room = 4;

  stream.take(0, "abcdefgh", room);

  EXPECT_EQ(read_all(stream, spool), "abcd");
  EXPECT_EQ(stream.total(), 8u);
  EXPECT_EQ(stream.stored(), 4u);
  EXPECT_EQ(stream.acknowledged(), 8u);
}

TEST_F(OutputStreamTest, AFollowerHoldsTheWindowUntilItHasTakenIt) {
  OutputStream stream(1);
  OutputStream::Follower follower;
  std::uint64_t room = 4;
  stream.add_follower(follower);

  stream.take(0, "abcdefgh", room);
  EXPECT_EQ(stream.acknowledged(), 4u);
  EXPECT_EQ(stream.at(4, 100)->bytes, "efgh");
  follower.position = 6;
  stream.trim();
  EXPECT_EQ(stream.acknowledged(), 6u);
  stream.remove_follower(follower);

  EXPECT_EQ(stream.acknowledged(), 8u);
}

TEST_F(OutputStreamTest, ARestartFindsWhatWasSpooledAndCutsATornEnd) {
  {
    OutputSpool spool(directory_ + "/s", 1 << 20);
    OutputStream stream(2);
    std::uint64_t room = 1 << 20;
    stream.take(0, "kept", room);
    ASSERT_TRUE(stream.spill(spool, kOp).ok());
  }
  std::ofstream(directory_ + "/s/output", std::ios::app) << "torn";

  OutputSpool spool(directory_ + "/s", 1 << 20);
  OutputStream stream(2);
  ASSERT_TRUE(spool.recover([&](std::string_view op_id, std::uint8_t number, OutputSpool::Chunk chunk) {
                     EXPECT_EQ(op_id, kOp);
                     EXPECT_EQ(number, 2);
                     stream.restore_chunk(chunk);
                   }).ok());
  stream.restore_tail(4, " tail", 9, true);

  EXPECT_EQ(read_all(stream, spool), "kept tail");
  EXPECT_EQ(std::filesystem::file_size(directory_ + "/s/output"), 48u + 4);
}

TEST_F(OutputStreamTest, TheSpoolRefusesMoreThanItsLimit) {
  OutputSpool spool(directory_ + "/s", 100);

  ASSERT_TRUE(spool.append(kOp, 1, 0, "x").ok());
  const auto refused = spool.append(kOp, 1, 1, std::string(60, 'y'));

  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kExhausted);
}

}  // namespace
}  // namespace dsec::edge
