// Which files the v2 driver uses. The hosts of this project's tests are hybrid, their
// v2 tree has no controllers; so the tree here is one of ordinary files.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sys/cgroup.h"
#include "sys/file.h"

namespace dsec::sys {
namespace {

class CgroupV2DriverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(root_), nullptr);
    for (const char* name : {"", "/node", "/node/slots", "/node/slots/s1"}) file(std::string(name) + "/cgroup.subtree_control", "");
    for (const char* name : {"/node/slots/s1", "/node/slots/s1/payload", "/node/slots/s1/payload/op-first"}) file(std::string(name) + "/cgroup.procs", "");
    for (const char* name : {"memory.max", "cpu.idle", "cpu.max", "pids.max"}) file(std::string("/node/slots/s1/payload/") + name, "");
    host_.unified = root_;
    for (auto& drive : host_.controllers) drive.version = CgroupHost::Version::kV2;
    auto made = CgroupTree::create(host_, "node");
    ASSERT_TRUE(made.ok()) << made.error().message();
    tree_ = std::make_unique<CgroupTree>(std::move(*made));
    const auto slot = tree_->make_slot("s1", ::getuid());
    ASSERT_TRUE(slot.ok()) << slot.error().message();
  }
  void TearDown() override { (void)remove_tree_at(AT_FDCWD, root_); }

  void file(const std::string& name, const std::string& text) const {
    const std::string path = root_ + name;
    ASSERT_TRUE(make_directories(path.substr(0, path.rfind('/')), 0755).ok());
    const Fd fd = open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0644).value();
    ASSERT_TRUE(write_all(fd.get(), text).ok());
  }
  std::string payload(const std::string& name) const { return read_file(std::string(root_) + "/node/slots/s1/payload/" + name).value(); }

  char root_[32] = "/tmp/dsec-v2-XXXXXX";
  CgroupHost host_;
  std::unique_ptr<CgroupTree> tree_;
};

TEST_F(CgroupV2DriverTest, LimitsThePayloadAndNotTheAgent) {
  const auto limited = tree_->limit("s1", {.memory_bytes = 64 << 20, .cpu_millis = 1500, .processes = 100, .batch = true});

  ASSERT_TRUE(limited.ok()) << limited.error().message();
  EXPECT_EQ(payload("memory.max"), "67108864");
  EXPECT_EQ(payload("cpu.max"), "150000 100000");
  EXPECT_EQ(payload("pids.max"), "100");
  EXPECT_EQ(payload("cpu.idle"), "1");
  EXPECT_FALSE(read_file(std::string(root_) + "/node/slots/s1/agent/memory.max").ok());
}

TEST_F(CgroupV2DriverTest, NoLimitIsWrittenAsMax) {
  ASSERT_TRUE(tree_->limit("s1", {}).ok());

  EXPECT_EQ(payload("memory.max"), "max");
  EXPECT_EQ(payload("cpu.max"), "max 100000");
  EXPECT_EQ(payload("pids.max"), "max");
}

TEST_F(CgroupV2DriverTest, UsageComesFromThePayloadsFiles) {
  const std::string at = "/node/slots/s1/payload/";
  file(at + "memory.current", "9000\n");
  file(at + "memory.peak", "12000\n");
  file(at + "memory.stat", "anon 5000\ninactive_file 1000\n");
  file(at + "memory.events", "low 0\noom 3\noom_kill 2\n");
  file(at + "pids.current", "7\n");
  file(at + "cpu.stat", "usage_usec 500\nthrottled_usec 30\n");
  file(at + "cpu.pressure", "some avg10=0 total=90\nfull avg10=0 total=50\n");
  file(at + "io.pressure", "some avg10=0 total=9\nfull avg10=0 total=5\n");

  const auto usage = tree_->usage("s1");

  ASSERT_TRUE(usage.ok()) << usage.error().message();
  EXPECT_EQ(usage->memory_bytes, 8000u) << "without page cache that can be dropped";
  EXPECT_EQ(usage->memory_peak_bytes, 12000u);
  EXPECT_EQ(usage->oom_kills, 2u);
  EXPECT_EQ(usage->processes, 7u);
  EXPECT_EQ(usage->cpu_usec, 500u);
  EXPECT_EQ(usage->stalled_usec, 25u) << "its own quota's waiting is no stall";
}

}  // namespace
}  // namespace dsec::sys
