#include "stored/fault_reader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "stored/fault_log.h"
#include "sys/file.h"

namespace dsec::stored {
namespace {

class FaultReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/dsec-faults-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { (void)sys::remove_tree_at(AT_FDCWD, folder_); }
  std::string path() const { return folder_ + "/faults.log"; }

  std::string folder_;
};

TEST_F(FaultReaderTest, WhatIsNotedIsReadOnceWithItsReader) {
  const auto log = FaultLog::open(path()).value();
  FaultReader reader(path());
  log->note({.kind = FaultKind::kError, .data = "aa", .reader_pid = 7, .reader_cgroup = "/node/slots/s1/payload", .waited_ms = 3, .why = "gone \"away\""});

  const auto first = reader.take_new();
  const auto second = reader.take_new();
  log->note({.kind = FaultKind::kStall, .data = "bb", .why = "slow"});
  const auto third = reader.take_new();

  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].data, "aa");
  EXPECT_EQ(first[0].cgroup, "/node/slots/s1/payload");
  EXPECT_EQ(first[0].why, "error: gone \"away\"");
  EXPECT_GT(first[0].at_ms, 1'600'000'000'000);
  EXPECT_TRUE(second.empty());
  ASSERT_EQ(third.size(), 1u);
  EXPECT_EQ(third[0].why, "stall: slow");
}

TEST_F(FaultReaderTest, TheSameReadersFaultIsWrittenOnceASecondAndAnothersToo) {
  const auto log = FaultLog::open(path()).value();
  for (int i = 0; i < 50; ++i) log->note({.data = "aa", .reader_pid = 7, .why = "gone"});
  log->note({.data = "aa", .reader_pid = 8, .why = "gone"});

  EXPECT_EQ(FaultReader(path()).take_new().size(), 2u);
}

TEST_F(FaultReaderTest, HalfALineWaitsForItsEndAndNonsenseIsSkipped) {
  ASSERT_TRUE(sys::replace_file(path(), "nonsense\n{\"at_ms\":\"x\"}\n{\"at_ms\":5,\"data\":\"aa\",\"kind\":\"error\",\"why\":\"w\"", 0600).ok());
  FaultReader reader(path());
  const auto before = reader.take_new();
  const sys::Fd file = sys::open_at(AT_FDCWD, path(), O_WRONLY | O_APPEND).value();
  ASSERT_TRUE(sys::write_all(file.get(), "}\n").ok());

  const auto after = reader.take_new();

  EXPECT_TRUE(before.empty());
  ASSERT_EQ(after.size(), 1u);
  EXPECT_EQ(after[0].at_ms, 5);
}

TEST_F(FaultReaderTest, AFileThatWasStartedAnewIsReadFromItsStart) {
  FaultReader reader(path());
  ASSERT_TRUE(sys::replace_file(path(), "{\"at_ms\":5,\"data\":\"aa\",\"kind\":\"error\",\"why\":\"a longer reason than the next\"}\n", 0600).ok());
  ASSERT_EQ(reader.take_new().size(), 1u);
  ASSERT_TRUE(sys::replace_file(path(), "{\"at_ms\":6,\"data\":\"bb\",\"kind\":\"error\",\"why\":\"w\"}\n", 0600).ok());

  const auto found = reader.take_new();

  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].data, "bb");
}

TEST_F(FaultReaderTest, WithoutAFileThereIsNothing) { EXPECT_TRUE(FaultReader(path()).take_new().empty()); }

}  // namespace
}  // namespace dsec::stored
