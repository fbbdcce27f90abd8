#include "edge/upper_pool.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <cerrno>
#include <functional>
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

TEST_F(BtrfsUpperPoolTest, TellsWhatEachHolds) {
  const UpperLayer full = pool_->create("full", 100 << 20).value();
  ASSERT_TRUE(pool_->create("empty", 100 << 20).ok());
  int error = 0;
  ASSERT_EQ(fill(full.directory.get(), "f", 8 << 20, &error), 8U << 20);
  ASSERT_EQ(::syncfs(full.directory.get()), 0);

  const Result<std::uint64_t> held = pool_->used_bytes("full");
  const Result<std::uint64_t> nothing = pool_->used_bytes("empty");

  ASSERT_TRUE(held.ok()) << held.error().message();
  EXPECT_GE(*held, 8U << 20);
  EXPECT_LT(*held, 9U << 20);
  ASSERT_TRUE(nothing.ok()) << nothing.error().message();
  EXPECT_LT(*nothing, 1U << 20);
  EXPECT_EQ(pool_->used_bytes("none").error().code(), ErrorCode::kNotFound);
}

TEST_F(BtrfsUpperPoolTest, ItsMarkChangesWithWhatASnapshotSees) {
  const UpperLayer upper = pool_->create("a", 100 << 20).value();
  const int directory = upper.directory.get();
  const sys::Fd file = sys::open_at(directory, "upper/f", O_RDWR | O_CREAT, 0600).value();
  ASSERT_TRUE(sys::write_all(file.get(), std::string(8192, 'a')).ok());
  ASSERT_EQ(::mkdirat(directory, "upper/d", 0700), 0);
  auto* const mapped = static_cast<char*>(::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
  ASSERT_NE(mapped, MAP_FAILED);
  // As a checkpoint does it: one snapshot while everything runs, one while it stands.
  const auto mark = [&] {
    (void)pool_->snapshot("a");
    (void)pool_->snapshot("a");
    return pool_->change_mark("a").value();
  };
  const auto mark_now = [&] {
    (void)pool_->snapshot("a");
    return pool_->change_mark("a").value();
  };
  const std::vector<std::pair<std::string, std::function<bool()>>> changes = {
      {"a write in place, through a descriptor opened before", [&] { return ::pwrite(file.get(), "b", 1, 4096) == 1; }},
      {"a write through a mapping", [&] { mapped[0] = 'c'; return true; }},
      {"the same bytes again", [&] { return ::pwrite(file.get(), "b", 1, 4096) == 1; }},
      {"a mode", [&] { return ::fchmodat(directory, "upper/f", 0640, 0) == 0; }},
      {"times put back", [&] { const timespec old[2] = {{1, 0}, {1, 0}}; return ::utimensat(directory, "upper/f", old, 0) == 0; }},
      {"an attribute", [&] { return ::fsetxattr(file.get(), "user.x", "y", 1, 0) == 0; }},
      {"a new file", [&] { return sys::open_at(directory, "upper/new", O_WRONLY | O_CREAT, 0600).ok(); }},
      {"a link", [&] { return ::linkat(directory, "upper/f", directory, "upper/d/g", 0) == 0; }},
      {"a rename", [&] { return ::renameat(directory, "upper/d/g", directory, "upper/h") == 0; }},
      {"a removal", [&] { return ::unlinkat(directory, "upper/new", 0) == 0; }},
      {"a hole", [&] { return ::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0; }},
  };

  for (const auto& [what, change] : changes) {
    const std::uint64_t before = mark();
    EXPECT_EQ(mark_now(), before) << "nothing happened before: " << what;
    ASSERT_TRUE(change()) << what;
    EXPECT_GT(mark_now(), before) << what;
  }
  ::munmap(mapped, 8192);
  EXPECT_EQ(pool_->change_mark("b").error().code(), ErrorCode::kNotFound);
  ASSERT_TRUE(pool_->sweep({}).ok());
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
