// What becomes of containers when a part of the engine dies, and what the
// engine's other verbs do to real ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <future>
#include <thread>

#include "backend/container/record.h"
#include "root/support/engine.h"
#include "sys/cgroup.h"
#include "sys/process.h"
#include "sys/unix_socket.h"

namespace dsec::testing {
namespace {

using ::testing::HasSubstr;

backend::container::Record record_of(const backend::Instance& instance) {
  return backend::container::decode_record(instance.record()).value();
}

class ContainerCrashTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  }
  static pid_t spawner_of(Engine& engine) {
    for (const Deadline deadline = soon(); !deadline.passed();)
      if (const auto status = engine.keeper().status(); status.ok() && status->spawner_pid != 0) return static_cast<pid_t>(status->spawner_pid);
    return 0;
  }
  static void kill_spawner(Engine& engine) {
    const sys::Fd spawner = sys::open_pidfd(spawner_of(engine)).value();
    ASSERT_TRUE(sys::signal_process(spawner.get(), SIGKILL).ok());
    ASSERT_TRUE(sys::wait_process(spawner.get(), soon()).ok());
  }
  static std::unique_ptr<backend::Instance> launched(Engine& engine) {
    auto instance = engine.launch();
    EXPECT_TRUE(instance.ok()) << instance.error().message();
    return instance.ok() ? std::move(*instance) : nullptr;
  }
};

TEST_F(ContainerCrashTest, AKilledSpawnerLosesNoContainer) {
  Engine engine;
  ASSERT_TRUE(engine.backend().sweep({}).ok());
  const auto before = launched(engine);
  ASSERT_TRUE(before);

  kill_spawner(engine);
  const auto after = launched(engine);

  ASSERT_TRUE(after);
  EXPECT_TRUE(says_hello(*before));
  EXPECT_TRUE(says_hello(*after));
  EXPECT_TRUE(before->destroy(soon()).ok());
  EXPECT_TRUE(after->destroy(soon()).ok());
  EXPECT_TRUE(engine.backend().spawner_status(soon())->used_slots.empty());
}

TEST_F(ContainerCrashTest, AKilledKeeperLosesNoContainer) {
  Engine engine;
  ASSERT_TRUE(engine.backend().sweep({}).ok());  // as every start does; what is lost is looked for from then on
  const auto before = launched(engine);
  ASSERT_TRUE(before);

  ::kill(static_cast<pid_t>(engine.keeper().status()->pid), SIGKILL);
  const auto after = launched(engine);

  ASSERT_TRUE(after);
  EXPECT_TRUE(says_hello(*before));
  EXPECT_TRUE(before->destroy(soon()).ok());
  EXPECT_TRUE(after->destroy(soon()).ok());
}

// A spawner that was started again counts from where the first did.
TEST_F(ContainerCrashTest, OneThatIsOverDoesNotTouchTheNextInItsSlot) {
  Engine engine({.ready_slots = "1"});
  const auto over = launched(engine);
  ASSERT_TRUE(over);
  ASSERT_TRUE(sys::signal_process(over->pidfd(), SIGKILL).ok());
  ASSERT_TRUE(sys::wait_process(over->pidfd(), soon()).ok());
  kill_spawner(engine);
  std::vector<std::unique_ptr<backend::Instance>> next;
  do {
    next.push_back(launched(engine));
    ASSERT_TRUE(next.back());
  } while (record_of(*next.back()).slot != record_of(*over).slot && next.size() < 16);
  ASSERT_EQ(record_of(*next.back()).slot, record_of(*over).slot);

  const auto destroyed = over->destroy(Deadline::in(std::chrono::seconds(5)));
  const auto swept = engine.backend().sweep({});

  EXPECT_TRUE(destroyed.ok()) << destroyed.error().message();
  EXPECT_TRUE(swept.ok()) << swept.error().message();
  EXPECT_TRUE(says_hello(*next.back()));
  for (const auto& instance : next) EXPECT_TRUE(instance->destroy(soon()).ok());
}

TEST_F(ContainerCrashTest, ASweepEndsWhatNoRecordNamesAndLeavesWhatWasJustLaunched) {
  Engine engine;
  const auto forgotten = launched(engine);
  const auto named = launched(engine);
  ASSERT_TRUE(forgotten && named);
  engine.restart_backend();
  const auto fresh = launched(engine);
  ASSERT_TRUE(fresh);

  const auto swept = engine.backend().sweep({named->record()});
  auto adopted = engine.backend().adopt(named->record());
  const auto gone = engine.backend().adopt(forgotten->record());

  ASSERT_TRUE(swept.ok()) << swept.error().message();
  ASSERT_TRUE(adopted.ok()) << adopted.error().message();
  EXPECT_TRUE(says_hello(**adopted));
  EXPECT_TRUE(says_hello(*fresh));
  EXPECT_FALSE(gone.ok());
  EXPECT_EQ(gone.error().code(), ErrorCode::kNotFound);
  EXPECT_TRUE((*adopted)->destroy(soon()).ok());
  EXPECT_TRUE(fresh->destroy(soon()).ok());
}

// A clone that fails late leaves the number of a descriptor that is another
// thread's by then; to close it gave containers wrong descriptors.
TEST_F(ContainerCrashTest, LaunchesThatAreKilledTakeNothingFromTheirNeighbours) {
  Engine engine({.ready_slots = "2"});
  const sys::CgroupTree tree = sys::CgroupTree::create(sys::CgroupHost::detect(), sys::cgroup_name(engine.data_dir())).value();
  std::atomic<bool> stop{false};
  std::atomic<int> good{0}, wrong{0};
  const auto launch = [&] {
    while (!stop) {
      auto instance = engine.launch();
      if (!instance.ok()) continue;
      std::error_code gone;
      const std::string inner = std::filesystem::read_symlink("/proc/" + std::to_string(record_of(**instance).pid) + "/fd/4", gone).string();
      if (!gone) ++(inner.starts_with("user:[") ? good : wrong);
      (void)(*instance)->destroy(soon());
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(launch);

  for (const Deadline deadline = Deadline::in(std::chrono::seconds(4)); !deadline.passed();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    const std::vector<std::string> slots = tree.slots().value();
    for (const std::string& slot : slots)
      if (tree.populated(slot)) (void)tree.kill(slot);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(wrong, 0);
  EXPECT_GT(good, 0);
}

TEST_F(ContainerCrashTest, AFrozenPayloadStandsUntilItIsThawed) {
  Engine engine;
  const auto instance = launched(engine);
  ASSERT_TRUE(instance);

  ASSERT_TRUE(instance->freeze(soon()).ok());
  auto output = std::async(std::launch::async, [&] { return run_inside(*instance, "echo awake"); });
  const bool stood = output.wait_for(std::chrono::milliseconds(300)) == std::future_status::timeout;
  ASSERT_TRUE(instance->thaw(soon()).ok());

  EXPECT_TRUE(stood);
  EXPECT_THAT(output.get(), HasSubstr("awake"));
  EXPECT_TRUE(instance->destroy(soon()).ok());
}

TEST_F(ContainerCrashTest, AKillForMemoryIsCountedOutside) {
  Engine engine;
  backend::LaunchSpec spec = engine.spec();
  spec.resources.memory_mb = 32;
  auto instance = engine.backend().launch(spec, engine.rootfs(), soon());
  ASSERT_TRUE(instance.ok()) << instance.error().message();

  const std::string output = run_inside(**instance, "dd if=/dev/zero of=/dev/null bs=200M count=1");
  const auto evidence = (*instance)->evidence();

  EXPECT_THAT(output, ::testing::Not(HasSubstr("status=0")));
  ASSERT_TRUE(evidence.ok());
  EXPECT_GE(evidence->oom_kills, 1u);
  EXPECT_FALSE(evidence->ended);
  EXPECT_TRUE((*instance)->destroy(soon()).ok());
}

TEST_F(ContainerCrashTest, APortInsideIsDialledFromOutside) {
  Engine engine;
  const auto instance = launched(engine);
  ASSERT_TRUE(instance);
  const auto nobody = instance->dial_port(8000, soon());
  auto server = std::async(std::launch::async, [&] { return run_inside(*instance, "echo from-inside | nc -l -p 8000"); });

  Result<sys::Fd> dialled = Error(ErrorCode::kUnavailable, "not tried");
  for (const Deadline deadline = soon(); !dialled.ok() && !deadline.passed();) dialled = instance->dial_port(8000, soon());
  ASSERT_TRUE(dialled.ok()) << dialled.error().message();
  char text[32]{};
  const ssize_t n = ::read(dialled->get(), text, sizeof text - 1);
  dialled->reset();

  EXPECT_EQ(nobody.error().code(), ErrorCode::kUnavailable);
  EXPECT_GT(n, 0);
  EXPECT_STREQ(text, "from-inside\n");
  (void)server.get();
  EXPECT_TRUE(instance->destroy(soon()).ok());
}

TEST_F(ContainerCrashTest, AListenerOnTheInnerLoopbackIsHeldOutside) {
  Engine engine;
  const auto instance = launched(engine);
  ASSERT_TRUE(instance);

  auto listeners = instance->listen_loopback({{backend::LoopbackKind::kTcp, 3128}});
  ASSERT_TRUE(listeners.ok()) << listeners.error().message();
  auto client = std::async(std::launch::async, [&] { return run_inside(*instance, "nc 127.0.0.1 3128 </dev/null"); });
  pollfd waiting{(*listeners)[0].get(), POLLIN, 0};
  ASSERT_EQ(::poll(&waiting, 1, 10'000), 1);
  sys::Fd accepted = sys::accept_unix((*listeners)[0].get()).value();
  ASSERT_EQ(::write(accepted.get(), "from-outside\n", 13), 13);
  accepted.reset();

  EXPECT_THAT(client.get(), HasSubstr("from-outside"));
  EXPECT_TRUE(instance->destroy(soon()).ok());
}

TEST_F(ContainerCrashTest, ManyLaunchesLeaveNothingBehind) {
  Engine engine;
  const auto cycle = [&] {
    const auto instance = launched(engine);
    ASSERT_TRUE(instance);
    ASSERT_TRUE(says_hello(*instance));
    ASSERT_TRUE(instance->destroy(soon()).ok());
  };
  const auto spawners_descriptors = [&] {
    const std::string path = "/proc/" + std::to_string(spawner_of(engine)) + "/fd";
    return std::distance(std::filesystem::directory_iterator(path), std::filesystem::directory_iterator());
  };
  // The pool is a little behind: as it is once nothing has changed for half a second.
  const auto settled = [&] {
    auto now = spawners_descriptors();
    for (int unchanged = 0; unchanged < 25; ++unchanged) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (const auto then = spawners_descriptors(); then != now) now = then, unchanged = 0;
    }
    return now;
  };
  for (int i = 0; i < 50; ++i) cycle();
  const std::size_t ours = open_descriptors();
  const std::size_t mounts = mounts_here();
  const auto theirs = settled();

  for (int i = 0; i < 300; ++i) cycle();

  EXPECT_EQ(open_descriptors(), ours);
  EXPECT_EQ(mounts_here(), mounts);
  // Four slots are ready, and at most eight more wait without a skeleton, of nine descriptors each.
  EXPECT_LE(settled(), theirs + 8 * 9);
  EXPECT_TRUE(engine.backend().spawner_status(soon())->used_slots.empty());
}

}  // namespace
}  // namespace dsec::testing
