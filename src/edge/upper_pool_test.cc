#include "edge/upper_pool.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>

#include "sys/file.h"

namespace dsec::edge {
namespace {

// Keeps duplicates, as the keeper's process does.
class MemoryKeeper final : public sys::DescriptorKeeper {
 public:
  Result<void> put(const std::string& name, int fd) override {
    DSEC_ASSIGN(kept_[name], sys::duplicate(fd));
    return {};
  }
  Result<std::vector<sys::KeptDescriptor>> get(const std::string& prefix) override {
    std::vector<sys::KeptDescriptor> out;
    for (const auto& [name, fd] : kept_)
      if (name.starts_with(prefix)) out.push_back({name, sys::duplicate(fd.get()).value()});
    return out;
  }
  Result<void> drop(const std::string& name) override {
    kept_.erase(name);
    return {};
  }

 private:
  std::map<std::string, sys::Fd> kept_;
};

class BtrfsUpperPoolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root for a loop device";
    ASSERT_NE(::mkdtemp(directory_), nullptr);
    Result<std::unique_ptr<BtrfsUpperPool>> pool = BtrfsUpperPool::open(options(), keeper_);
    if (!pool.ok() && pool.error().code() == ErrorCode::kUnsupported) GTEST_SKIP() << pool.error().message();
    ASSERT_TRUE(pool.ok()) << pool.error().message();
    pool_ = std::move(pool).value();
  }
  void TearDown() override {
    if (pool_) EXPECT_TRUE(pool_->release().ok());
    pool_.reset();
    (void)sys::remove_tree_at(AT_FDCWD, directory_);
  }
  BtrfsUpperPool::Options options() const { return {std::string(directory_) + "/pool.img", 2ULL << 30}; }
  // Bytes that fit into a new file, and what ended it.
  static std::uint64_t fill(int directory, const char* name, std::uint64_t at_most, int* error) {
    const sys::Fd file = sys::open_at(directory, name, O_WRONLY | O_CREAT, 0600).value();
    const std::string block(1 << 20, 'x');
    std::uint64_t written = 0;
    *error = 0;
    while (written < at_most) {
      const ssize_t n = ::write(file.get(), block.data(), block.size());
      if (n < 0) {
        *error = errno;
        break;
      }
      written += static_cast<std::uint64_t>(n);
    }
    return written;
  }

  char directory_[32] = "/tmp/dsec-pool-XXXXXX";
  MemoryKeeper keeper_;
  std::unique_ptr<BtrfsUpperPool> pool_;
};

TEST_F(BtrfsUpperPoolTest, TheLimitOfASandboxHoldsAndIsItsOwn) {
  const UpperLayer small = pool_->create("small", 20 << 20).value();
  const UpperLayer other = pool_->create("other", 200 << 20).value();

  int error = 0;
  const std::uint64_t written = fill(small.directory.get(), "f", 100 << 20, &error);
  int other_error = 0;
  const std::uint64_t other_written = fill(other.directory.get(), "f", 50 << 20, &other_error);

  EXPECT_EQ(error, EDQUOT);
  EXPECT_LE(written, 20u << 20);
  EXPECT_GE(written, 15u << 20);
  EXPECT_EQ(other_error, 0);
  EXPECT_EQ(other_written, 50u << 20);
}

TEST_F(BtrfsUpperPoolTest, ANameIsGivenOnceAndAgainAfterItsRemoval) {
  ASSERT_TRUE(pool_->create("a", 1 << 20).ok());

  EXPECT_EQ(pool_->create("a", 1 << 20).error().code(), ErrorCode::kConflict);
  EXPECT_TRUE(pool_->remove("a").ok());
  EXPECT_TRUE(pool_->remove("a").ok());
  EXPECT_TRUE(pool_->create("a", 1 << 20).ok());
  EXPECT_FALSE(pool_->create("../a", 1 << 20).ok());
}

TEST_F(BtrfsUpperPoolTest, OpensTheLayerThatItGaveAndNoOther) {
  const UpperLayer made = pool_->create("a", 1 << 20).value();
  ASSERT_EQ(::mkdirat(made.directory.get(), "mark", 0700), 0);

  const Result<UpperLayer> again = pool_->open("a");

  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_EQ(::faccessat(again->directory.get(), "mark", F_OK, 0), 0);
  EXPECT_EQ(pool_->open("b").error().code(), ErrorCode::kNotFound);
}

TEST_F(BtrfsUpperPoolTest, AnotherProcessFindsThePoolAndSweepsWhatNobodyOwns) {
  for (const char* id : {"live", "dead1", "dead2"}) ASSERT_TRUE(pool_->create(id, 1 << 20).ok());
  pool_.reset();

  pool_ = BtrfsUpperPool::open(options(), keeper_).value();

  EXPECT_EQ(pool_->sweep({"live"}).value(), 2u);
  EXPECT_EQ(pool_->create("live", 1 << 20).error().code(), ErrorCode::kConflict);
  EXPECT_TRUE(pool_->create("dead1", 1 << 20).ok());
}

TEST_F(BtrfsUpperPoolTest, ThePoolComesBackWhenTheKeeperWasLostToo) {
  const UpperLayer held = pool_->create("held", 1 << 20).value();  // as a live sandbox holds it
  ASSERT_TRUE(pool_->release().ok());
  pool_.reset();

  pool_ = BtrfsUpperPool::open(options(), keeper_).value();

  EXPECT_EQ(pool_->create("held", 1 << 20).error().code(), ErrorCode::kConflict);
}

TEST(UpperPoolsTest, ATmpfsNeverHoldsMoreThanHalfOfTheMemory) {
  UpperPools pools(nullptr, "none here");

  const UpperLayer upper = pools.create("a", 4096ULL << 20, 1024ULL << 20).value();

  EXPECT_EQ(upper.layer().kind, backend::WritableLayer::Kind::kTmpfs);
  EXPECT_EQ(upper.limit_bytes, 512ULL << 20);
  EXPECT_NE(pools.describe().find("none here"), std::string::npos);
}

TEST_F(BtrfsUpperPoolTest, ASnapshotHoldsWhatWasThereAndGoesWithItsObject) {
  const UpperLayer upper = pool_->create("a", 100 << 20).value();
  const auto write = [&](const char* text) {
    const sys::Fd file = sys::open_at(upper.directory.get(), "upper/f", O_WRONLY | O_CREAT | O_TRUNC, 0600).value();
    ASSERT_TRUE(sys::write_all(file.get(), text).ok());
  };
  write("before");

  auto snapshot = pool_->snapshot("a");
  ASSERT_TRUE(snapshot.ok()) << snapshot.error().message();
  write("after");

  const int directory = (*snapshot)->layer().directory_fd;
  EXPECT_EQ(sys::read_file_at(directory, "upper/f").value(), "before");
  EXPECT_EQ(::openat(directory, "upper/new", O_WRONLY | O_CREAT, 0600), -1) << "it is read-only";
  snapshot->reset();
  EXPECT_EQ(pool_->snapshot("b").error().code(), ErrorCode::kNotFound);
  ASSERT_TRUE(pool_->sweep({}).ok());
}

}  // namespace
}  // namespace dsec::edge
