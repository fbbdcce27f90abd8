#include "protocol/frame.h"

#include <gtest/gtest.h>

namespace dsec::protocol {
namespace {

TEST(FrameReaderTest, ReadsFramesThatArriveByteByByte) {
  const std::string stream = encode_frame(MessageType::kPing, "abc") + encode_frame(MessageType::kShutdown, "");

  FrameReader reader;
  std::vector<Frame> frames;
  for (const char byte : stream) {
    reader.feed({&byte, 1});
    while (auto frame = reader.next()) frames.push_back(*frame);
  }

  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].type, MessageType::kPing);
  EXPECT_EQ(frames[0].body, "abc");
  EXPECT_EQ(frames[1].type, MessageType::kShutdown);
  EXPECT_EQ(reader.skipped_bytes(), 0u);
}

TEST(FrameReaderTest, FindsTheNextFrameAfterGarbage) {
  FrameReader reader;
  reader.feed("DSF1 half a frame, DDSF then noise");
  reader.feed(encode_frame(MessageType::kPong, "x"));

  const auto frame = reader.next();

  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->type, MessageType::kPong);
  EXPECT_EQ(reader.skipped_bytes(), 34u);
}

TEST(FrameReaderTest, SkipsAHeaderWithAnyBitFlipped) {
  const std::string good = encode_frame(MessageType::kPing, "body");
  for (std::size_t bit = 0; bit < kFrameHeader * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));

    FrameReader reader;
    reader.feed(bad);
    reader.feed(encode_frame(MessageType::kPong, ""));

    const auto frame = reader.next();
    ASSERT_TRUE(frame) << "bit " << bit;
    EXPECT_EQ(frame->type, MessageType::kPong) << "bit " << bit;
  }
}

TEST(FrameReaderTest, TakesTheLargestBody) {
  FrameReader reader;
  reader.feed(encode_frame(MessageType::kOutput, std::string(kMaxFrameBody, 'z')));

  const auto frame = reader.next();

  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->body.size(), kMaxFrameBody);
}

TEST(FrameReaderTest, HoldsNoMoreThanItWasFedWhenAllIsNoise) {
  FrameReader reader;
  for (int i = 0; i < 1000; ++i) {
    reader.feed(std::string(4096, 'D'));
    EXPECT_FALSE(reader.next());
  }

  EXPECT_GE(reader.skipped_bytes(), 4095u * 1000);
}

}  // namespace
}  // namespace dsec::protocol
