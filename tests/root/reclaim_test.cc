// Memory of stopped processes goes to swap of the node's own and comes back whole.
#include "sys/reclaim.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "root/support/engine.h"
#include "sys/file.h"
#include "sys/swap.h"

namespace dsec::testing {
namespace {

constexpr std::size_t kBytes = 64 << 20;

// Fills memory with half random bytes, says so, and on a second word checks every byte.
class Holder {
 public:
  Holder() {
    if (::pipe(to_child_) != 0 || ::pipe(from_child_) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) hold();
    say_done();
  }
  ~Holder() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    for (int fd : {to_child_[0], to_child_[1], from_child_[0], from_child_[1]}) ::close(fd);
  }
  int pid() const { return pid_; }
  // Whether every byte is as it was written.
  bool whole() {
    if (::write(to_child_[1], "c", 1) != 1) return false;
    return say_done() == 'y';
  }
  std::uint64_t field(const char* name) const {
    const std::string text = sys::read_file("/proc/" + std::to_string(pid_) + "/status").value();
    const std::size_t at = text.find(std::string(name) + ":");
    return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at + std::strlen(name) + 1, nullptr, 10) << 10;
  }

 private:
  char say_done() const {
    char word = 0;
    return ::read(from_child_[0], &word, 1) == 1 ? word : 0;
  }
  static char byte_at(std::size_t i) { return (i >> 11) % 2 != 0 ? '\0' : static_cast<char>((i * 2654435761u) >> 13); }
  [[noreturn]] void hold() const {
    auto* memory = static_cast<char*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory == MAP_FAILED) ::_exit(1);
    for (std::size_t i = 0; i < kBytes; ++i) memory[i] = byte_at(i);
    char word = 'y';
    for (;;) {
      if (::write(from_child_[1], &word, 1) != 1) ::_exit(0);
      if (::read(to_child_[0], &word, 1) != 1) ::_exit(0);
      word = 'y';
      for (std::size_t i = 0; i < kBytes; ++i)
        if (memory[i] != byte_at(i)) word = 'n';
    }
  }
  int to_child_[2], from_child_[2];
  pid_t pid_;
};

class ReclaimTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    const auto on = sys::switch_swap_on({.zram_bytes = 256 << 20, .directory = scratch_.path() + "/swap"});
    if (!on.ok() && on.error().code() == ErrorCode::kUnsupported) GTEST_SKIP() << on.error().message();
    ASSERT_TRUE(on.ok()) << on.error().message();
  }
  void TearDown() override {
    const auto off = sys::switch_swap_off(scratch_.path() + "/swap");
    EXPECT_TRUE(off.ok()) << off.error().message();
  }
  ScratchDirectory scratch_;
  std::atomic<bool> cancelled_{false};
};

TEST_F(ReclaimTest, AStoppedProcessGoesToSwapAndComesBackWhole) {
  Holder holder;
  ::kill(holder.pid(), SIGSTOP);
  const std::uint64_t before = holder.field("VmRSS");
  ASSERT_GE(before, kBytes);

  const auto out = sys::advise_process(holder.pid(), sys::MemoryAdvice::kPageOut, cancelled_, Deadline::in(std::chrono::seconds(30)));

  ASSERT_TRUE(out.ok()) << out.error().message();
  EXPECT_GE(holder.field("VmSwap"), kBytes * 95 / 100);
  ASSERT_TRUE(sys::advise_process(holder.pid(), sys::MemoryAdvice::kWillNeed, cancelled_, Deadline::in(std::chrono::seconds(30))).ok());
  ::kill(holder.pid(), SIGCONT);
  EXPECT_TRUE(holder.whole());
}

TEST_F(ReclaimTest, IsGivenUpWhenTheMemoryIsWantedAgain) {
  Holder holder;
  cancelled_ = true;

  const auto out = sys::advise_process(holder.pid(), sys::MemoryAdvice::kPageOut, cancelled_, Deadline::in(std::chrono::seconds(30)));

  ASSERT_FALSE(out.ok());
  EXPECT_EQ(out.error().code(), ErrorCode::kCancelled);
  EXPECT_LT(holder.field("VmSwap"), kBytes / 2);
}

TEST_F(ReclaimTest, OfAProcessThatHasGoneThereIsNothing) {
  int gone = 0;
  {
    Holder holder;
    gone = holder.pid();
  }
  const auto out = sys::advise_process(gone, sys::MemoryAdvice::kPageOut, cancelled_, Deadline::in(std::chrono::seconds(1)));
  ASSERT_FALSE(out.ok());
  EXPECT_EQ(out.error().code(), ErrorCode::kNotFound);
}

// A pipe that nobody reads stands for a control file that works for ever.
TEST_F(ReclaimTest, AWriteThatTakesTooLongIsInterrupted) {
  const std::string fifo = scratch_.path() + "/slow";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const int reader = ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  const std::string much(1 << 20, 'x');

  const auto began = std::chrono::steady_clock::now();
  const auto late = sys::write_patiently(AT_FDCWD, fifo, much, cancelled_, Deadline::in(std::chrono::milliseconds(50)));
  std::thread canceller([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    cancelled_ = true;
  });
  const auto stopped = sys::write_patiently(AT_FDCWD, fifo, much, cancelled_, Deadline::in(std::chrono::seconds(60)));
  canceller.join();
  ::close(reader);

  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code(), ErrorCode::kDeadlineExceeded);
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code(), ErrorCode::kCancelled);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
}

TEST_F(ReclaimTest, SwapIsFoundAgainAndRemovedWithNothingLeft) {
  const std::string directory = scratch_.path() + "/swap";
  const std::size_t areas = sys::swap_areas().size();
  const sys::SwapWish wish{.zram_bytes = 256 << 20, .file_bytes = 32 << 20, .directory = directory};

  const auto first = sys::switch_swap_on(wish);
  const auto second = sys::switch_swap_on(wish);
  const auto other_size = sys::switch_swap_on({.zram_bytes = 512 << 20, .file_bytes = 32 << 20, .directory = directory});

  if (!first.ok() && first.error().code() == ErrorCode::kUnsupported) GTEST_SKIP() << first.error().message();
  ASSERT_TRUE(first.ok()) << first.error().message();
  EXPECT_EQ(sys::swap_areas().size(), areas + 1) << "the file; the device was on";
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(second->empty());
  ASSERT_TRUE(other_size.ok());
  ASSERT_EQ(other_size->size(), 1u);
  EXPECT_NE(other_size->front().find("256 MiB"), std::string::npos) << other_size->front();
  ASSERT_TRUE(sys::switch_swap_off(directory).ok());
  EXPECT_EQ(sys::swap_areas().size(), areas - 1);
  EXPECT_TRUE(sys::list_directory(directory).value().empty());
}

// What a process leaves that dies between the device and its first use.
TEST_F(ReclaimTest, AHalfMadeDeviceIsMadeAnew) {
  const std::string directory = scratch_.path() + "/other";
  ASSERT_TRUE(sys::switch_swap_on({.zram_bytes = 64 << 20, .directory = directory}).ok());
  const std::string device = "/dev/zram" + sys::read_file(directory + "/zram").value();
  const auto areas = sys::swap_areas();
  ASSERT_TRUE(std::any_of(areas.begin(), areas.end(), [&](const sys::SwapArea& area) { return area.path == device; }));
  ASSERT_EQ(::system(("swapoff " + device).c_str()), 0);

  const auto again = sys::switch_swap_on({.zram_bytes = 64 << 20, .directory = directory});

  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_TRUE(sys::switch_swap_off(directory).ok());
}

}  // namespace
}  // namespace dsec::testing
