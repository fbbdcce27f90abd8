// Layers read on demand, for real: a FUSE filesystem of ours, EROFS above it, and
// processes that are killed on both sides.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>

#include "erofs/writer.h"
#include "image/erofs_mount.h"
#include "origin/chunk_index.h"
#include "origin/directory_origin.h"
#include "root/support/engine.h"
#include "root/support/tree_model.h"
#include "stored/fuse_mount.h"
#include "stored/server.h"
#include "sys/file.h"

namespace dsec {
namespace {

using origin::ChunkIndex;
using origin::Content;
using origin::ObjectKind;
constexpr auto kPatience = std::chrono::seconds(20);

// How often readers and servers are killed; more of both in nightly runs.
int times(const char* variable, int usual) {
  const char* value = std::getenv(variable);
  return value ? std::atoi(value) : usual;
}

// A directory whose reads take `delay`.
class SlowOrigin final : public origin::Origin {
 public:
  SlowOrigin(std::unique_ptr<origin::Origin> inner, Duration delay) : inner_(std::move(inner)), delay_(delay) {}
  Result<std::unique_ptr<origin::Object>> open(const origin::ObjectName& name, Deadline deadline) override {
    DSEC_ASSIGN(std::unique_ptr<origin::Object> object, inner_->open(name, deadline));
    return std::unique_ptr<origin::Object>(new Slow(std::move(object), delay_));
  }
  Result<void> publish(const origin::ObjectName& name, const Content& content, Deadline deadline) override { return inner_->publish(name, content, deadline); }
  Result<origin::ObjectList> list(const std::string& after, std::size_t limit, Deadline deadline) override { return inner_->list(after, limit, deadline); }
  Result<void> remove(const origin::ObjectName& name, Deadline deadline) override { return inner_->remove(name, deadline); }
  Result<std::vector<origin::Leftover>> leftovers(Deadline deadline) override { return inner_->leftovers(deadline); }
  Result<void> remove_leftover(const origin::Leftover& one, Deadline deadline) override { return inner_->remove_leftover(one, deadline); }
  std::string description() const override { return inner_->description(); }

 private:
  class Slow final : public origin::Object {
   public:
    Slow(std::unique_ptr<origin::Object> inner, Duration delay) : inner_(std::move(inner)), delay_(delay) {}
    std::uint64_t size() const override { return inner_->size(); }
    Result<origin::Buffer> read(std::uint64_t offset, std::size_t length, Deadline deadline) const override {
      std::this_thread::sleep_for(delay_);
      return inner_->read(offset, length, deadline);
    }

   private:
    std::unique_ptr<origin::Object> inner_;
    Duration delay_;
  };
  std::unique_ptr<origin::Origin> inner_;
  const Duration delay_;
};

class StoredTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root: mounts";
    if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "this machine has no /dev/fuse";
    for (const char* folder : {"/state", "/layers", "/store"}) ASSERT_EQ(::mkdir((scratch_.path() + folder).c_str(), 0700), 0);
    write_image();
    filesystem_ = stored::make_filesystem().value();
  }
  void TearDown() override {
    stop_server();
    // With its last channel the filesystem ends: nobody waits for it any more.
    filesystem_.channel.reset();
    tree_.reset();
  }

  // An image of a hundred files and more, its data in the store and its index with the server.
  void write_image() {
    model_ = TreeModel::random(7);
    std::mt19937_64 random(11);
    for (int i = 0; i < 24; ++i) {
      std::string content(768 << 10, '\0');
      for (std::size_t at = 0; at < content.size(); at += 8) reinterpret_cast<std::uint64_t&>(content[at]) = random();
      model_.file("big" + std::to_string(i), std::move(content), {.mode = 0644});
    }
    const sys::Fd metadata = sys::open_at(AT_FDCWD, metadata_path(), O_RDWR | O_CREAT, 0600).value();
    const sys::Fd data = sys::open_at(AT_FDCWD, scratch_.path() + "/data", O_RDWR | O_CREAT, 0600).value();
    erofs::Writer writer(metadata.get(), data.get(), {});
    ASSERT_TRUE(model_.give_to(writer).ok());
    hex_ = writer.finish({.unstated_seconds = 1, .identity = "test"}).value().data_digest;
    const Content content = Content::of_file(data.get()).value();
    ASSERT_EQ(content.hex(), hex_);
    const auto store = origin::DirectoryOrigin::create({.directory = scratch_.path() + "/store"}, Deadline::in(kPatience)).value();
    ASSERT_TRUE(store->publish({ObjectKind::kData, hex_}, content, Deadline::in(kPatience)).ok());
    ASSERT_TRUE(sys::replace_file(scratch_.path() + "/state/" + hex_ + ".index", ChunkIndex::of(content).value().bytes(), 0600).ok());
  }

  void start_server(Duration delay, std::uint64_t cache_bytes = 1 << 30, bool hand_over = false) {
    server_ = ::fork();
    ASSERT_GE(server_, 0);
    if (server_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto store = origin::DirectoryOrigin::create({.directory = scratch_.path() + "/store"}, Deadline::in(kPatience));
    if (!store.ok()) ::_exit(3);
    SlowOrigin slow(std::move(*store), delay);
    const stored::ServerOptions options{.folders = {scratch_.path() + "/state", hand_over ? scratch_.path() + "/layers" : ""},
                                        .cache_bytes = cache_bytes,
                                        .patience = {.attempts = 2, .each = std::chrono::milliseconds(500)},
                                        .fetch_deadline = std::chrono::seconds(2),
                                        .stall_limit = std::chrono::milliseconds(150),
                                        .prefetch = {.window = window_, .pressure_folder = scratch_.path()}};
    filesystem_.mount.reset();
    const auto served = stored::serve(options, std::move(filesystem_.channel), slow);
    ::_exit(served.ok() ? 0 : 4);
  }
  void stop_server() {
    if (server_ <= 0) return;
    ::kill(server_, SIGKILL);
    ::waitpid(server_, nullptr, 0);
    server_ = 0;
  }
  void mount() {
    const std::string device = "/proc/self/fd/" + std::to_string(filesystem_.mount.get()) + "/" + hex_;
    auto mounted = image::mount_erofs(metadata_path(), {device});
    ASSERT_TRUE(mounted.ok()) << mounted.error().message();
    EXPECT_TRUE(mounted->direct_io);
    tree_ = std::move(mounted->mount);
  }
  std::string root() const { return "/proc/self/fd/" + std::to_string(tree_.get()); }
  std::string metadata_path() const { return scratch_.path() + "/meta"; }
  // A number of the object's in stats.json; 0 while it is not there.
  std::uint64_t stat(const std::string& name) const {
    const auto text = sys::read_file(scratch_.path() + "/state/stats.json", 1 << 20);
    const std::size_t at = text.ok() ? text->find("\"" + name + "\":") : std::string::npos;
    return at == std::string::npos ? 0 : std::strtoull(text->c_str() + at + name.size() + 3, nullptr, 10);
  }
  // As on a node that has nothing of the object yet.
  void forget_all() const {
    for (const std::string& suffix : {"/" + hex_ + ".chunks", std::string("/stats.json")}) ::unlink((scratch_.path() + "/state" + suffix).c_str());
    drop_caches();
  }
  static bool comes_true(const std::function<bool()>& what) {
    for (int i = 0; i < 400 && !what(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return what();
  }
  std::string faults() const { return sys::read_file(scratch_.path() + "/state/faults.log", 1 << 20).value(); }

  // 0 when every file in an order of its own is what was written, 1 for a wrong
  // byte, 2 for an error of a read.
  int read_all(unsigned seed) const {
    std::vector<std::string> names;
    for (const auto& [path, file] : model_.files)
      if (S_ISREG(file->mode) && !file->content.empty()) names.push_back(path);
    std::mt19937 random(seed);
    std::shuffle(names.begin(), names.end(), random);
    for (const std::string& name : names) {
      const auto got = sys::read_file(root() + "/" + name, 8 << 20);
      if (!got.ok()) return 2;
      if (*got != model_.files.at(name)->content) return 1;
    }
    return 0;
  }
  pid_t start_reader(unsigned seed) const {
    const pid_t pid = ::fork();
    if (pid == 0) ::prctl(PR_SET_PDEATHSIG, SIGKILL), ::_exit(read_all(seed));
    return pid;
  }
  static int outcome(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  // The pages that the kernel has are not what is to be tested.
  static void drop_caches() { (void)sys::write_at(AT_FDCWD, "/proc/sys/vm/drop_caches", "3"); }

  const testing::ScratchDirectory scratch_;
  TreeModel model_;
  std::string hex_;
  stored::FuseFilesystem filesystem_;
  sys::Fd tree_;
  pid_t server_ = 0;
  Duration window_ = std::chrono::minutes(2);
};

TEST_F(StoredTest, ATreeIsReadThroughTheStoreAsItWasWritten) {
  start_server({});
  mount();

  EXPECT_EQ(model_.compare(root()), "");
  drop_caches();
  EXPECT_EQ(model_.compare(root()), "") << "from what is cached now";
}

TEST_F(StoredTest, NoReadIsLostAndNoByteIsWrongWhileTheServerIsKilled) {
  start_server(std::chrono::milliseconds(5));
  mount();
  std::vector<pid_t> readers;
  for (unsigned i = 0; i < 8; ++i) readers.push_back(start_reader(i));

  std::mt19937 random(5);
  for (int i = 0; i < times("DSEC_STORED_SERVER_KILLS", 15); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 40));
    stop_server();
    drop_caches();
    start_server(std::chrono::milliseconds(5));
  }

  for (const pid_t reader : readers) EXPECT_EQ(outcome(reader), 0);
  EXPECT_EQ(read_all(99), 0);
}

TEST_F(StoredTest, ReadersThatAreKilledLeaveNothingWrongBehind) {
  start_server(std::chrono::milliseconds(3), 4 << 20);  // a small cache: chunks come and go
  mount();
  std::mt19937 random(6);

  for (int i = 0; i < times("DSEC_STORED_READER_KILLS", 150); ++i) {
    const pid_t reader = start_reader(random());
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 15000));
    ::kill(reader, SIGKILL);
    outcome(reader);
  }

  EXPECT_EQ(outcome(start_reader(1)), 0) << "from the pages that the killed have left";
  drop_caches();
  EXPECT_EQ(outcome(start_reader(2)), 0);
}

TEST_F(StoredTest, AStoreThatIsGoneIsAnErrorWithTheReadersNameOnItAndOthersGoOn) {
  start_server({});
  mount();
  ASSERT_EQ(sys::read_file(root() + "/big0", 8 << 20).value(), model_.files.at("big0")->content);
  const std::string object = scratch_.path() + "/store/" + origin::ObjectName{ObjectKind::kData, hex_}.path();
  // Cut off where it is open, as a truncated file of a broken store.
  ASSERT_EQ(::truncate(object.c_str(), 0), 0);
  drop_caches();

  const pid_t reader = start_reader(3);
  const int met = outcome(reader);

  EXPECT_EQ(met, 2) << "an error, not zeros and not other bytes";
  EXPECT_EQ(sys::read_file(root() + "/big0", 8 << 20).value(), model_.files.at("big0")->content);
  EXPECT_NE(faults().find("\"kind\":\"error\""), std::string::npos) << faults();
  EXPECT_NE(faults().find("\"pid\":" + std::to_string(reader) + ","), std::string::npos) << faults();
}

TEST_F(StoredTest, AStoreThatIsSlowIsNoted) {
  start_server(std::chrono::milliseconds(200));
  mount();

  const pid_t reader = ::fork();
  if (reader == 0) ::_exit(sys::read_file(root() + "/big3", 8 << 20).ok() ? 0 : 2);

  EXPECT_EQ(outcome(reader), 0);
  EXPECT_NE(faults().find("\"kind\":\"stall\""), std::string::npos) << faults();
}

// Two starts of the same job on two nodes, 300 us away from the store.
TEST_F(StoredTest, TheSecondNodeReadsAheadWhatTheFirstOneReadFirst) {
  const auto job = [this] {
    for (const char* name : {"big5", "big2", "big17", "big11", "big8"})
      if (*sys::read_file(root() + "/" + name, 8 << 20) != model_.files.at(name)->content) return false;
    return true;
  };
  window_ = std::chrono::seconds(2);
  start_server(std::chrono::microseconds(300));
  mount();
  ASSERT_TRUE(job());
  const std::string trace = scratch_.path() + "/store/" + origin::ObjectName{ObjectKind::kTrace, hex_}.path();
  ASSERT_TRUE(comes_true([&] { return ::access(trace.c_str(), F_OK) == 0; }));
  ASSERT_TRUE(comes_true([&] { return stat("demand_misses") > 0; }));
  const std::uint64_t misses = stat("demand_misses"), fetched = stat("fetched_bytes");
  stop_server();
  forget_all();

  window_ = std::chrono::minutes(2);
  start_server(std::chrono::microseconds(300));
  ASSERT_EQ(sys::read_file(root() + "/big5", 8 << 20).value(), model_.files.at("big5")->content);
  ASSERT_TRUE(comes_true([&] { return stat("prefetched_bytes") > 0 && stat("fetched_bytes") >= fetched; }));
  ASSERT_TRUE(job());

  ASSERT_TRUE(comes_true([&] { return stat("wasted_bytes") == 0 && stat("useful_bytes") > 0; })) << "all of it was read";
  EXPECT_LE(stat("demand_misses"), misses / 2);
  EXPECT_EQ(stat("fetched_bytes"), fetched) << "not a chunk more than without a trace";
}

TEST_F(StoredTest, AWholeObjectBecomesAFileOfTheLayersAndReadersGoOn) {
  start_server({}, 1 << 30, true);
  mount();
  ASSERT_EQ(read_all(4), 0);
  const std::string whole = scratch_.path() + "/layers/" + hex_ + ".data";
  for (int i = 0; i < 200 && ::access(whole.c_str(), F_OK) != 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));

  const auto local = image::mount_erofs(metadata_path(), {whole});

  ASSERT_TRUE(local.ok()) << local.error().message();
  EXPECT_EQ(model_.compare("/proc/self/fd/" + std::to_string(local->mount.get())), "");
  stop_server();
  ASSERT_EQ(::unlink((scratch_.path() + "/store/" + origin::ObjectName{ObjectKind::kData, hex_}.path()).c_str()), 0);
  start_server({}, 1 << 30, true);
  drop_caches();
  EXPECT_EQ(read_all(5), 0) << "the next server serves the file of the layers";
}

}  // namespace
}  // namespace dsec
