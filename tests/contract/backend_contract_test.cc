#include "backend_contract.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/fake/plain_backend.h"
#include "sys/file.h"

namespace dsec::contract {
namespace {

using namespace std::chrono_literals;

TEST_P(BackendContract, LaunchesAnInstanceWhoseAgentAnswers) {
  auto instance = launch();
  ASSERT_NE(instance, nullptr);

  auto stream = instance->dial_agent(soon());

  ASSERT_TRUE(stream.ok()) << stream.error().message();
  EXPECT_TRUE(AgentProbe(std::move(*stream)).hello(std::string(32, 's'), 1));
  EXPECT_TRUE(instance->destroy(soon()).ok());
}

TEST_P(BackendContract, GreetsTheAgentOnTheFirstStreamAndOnNoOther) {
  auto instance = launch(hello_frame(std::string(32, 's'), 1));
  ASSERT_NE(instance, nullptr);

  AgentProbe greeted(std::move(*instance->dial_agent(soon())));
  AgentProbe later(std::move(*instance->dial_agent(soon())));

  EXPECT_TRUE(greeted.wait_for(protocol::MessageType::kHelloReply));
  EXPECT_TRUE(later.hello(std::string(32, 's'), 2));
  EXPECT_TRUE(instance->destroy(soon()).ok());
}

TEST_P(BackendContract, RefusesAGreetingThatNoSocketTakesWhole) {
  backend::LaunchSpec spec;
  spec.id = "contract";
  spec.greeting = std::string(64 << 10, 'x');

  const auto instance = fixture_->backend().launch(spec, fixture_->rootfs(), soon());

  ASSERT_FALSE(instance.ok());
  EXPECT_EQ(instance.error().code(), ErrorCode::kInvalidArgument);
}

TEST_P(BackendContract, RefusesAnAgentCallerWithAnotherSecret) {
  auto instance = launch();
  ASSERT_NE(instance, nullptr);
  AgentProbe first(std::move(*instance->dial_agent(soon())));
  ASSERT_TRUE(first.hello(std::string(32, 's'), 1));

  AgentProbe second(std::move(*instance->dial_agent(soon())));

  EXPECT_FALSE(second.hello(std::string(32, 'x'), 2));
  EXPECT_TRUE(instance->destroy(soon()).ok());
}

TEST_P(BackendContract, EndsEveryProcessOnDestroy) {
  auto instance = launch();
  ASSERT_NE(instance, nullptr);
  AgentProbe agent(std::move(*instance->dial_agent(soon())));
  ASSERT_TRUE(agent.hello(std::string(32, 's'), 1));

  EXPECT_FALSE(over(*instance));
  ASSERT_TRUE(instance->destroy(soon()).ok());

  EXPECT_TRUE(over(*instance, 5s));
  const auto evidence = instance->evidence();
  ASSERT_TRUE(evidence.ok());
  EXPECT_TRUE(evidence->ended);
  EXPECT_TRUE(evidence->killed_by_platform);
}

TEST_P(BackendContract, DestroysTwiceWithoutAnError) {
  auto instance = launch();
  ASSERT_NE(instance, nullptr);

  EXPECT_TRUE(instance->destroy(soon()).ok());
  EXPECT_TRUE(instance->destroy(soon()).ok());
}

TEST_P(BackendContract, LeavesAnInstanceRunningThatIsLetGo) {
  auto instance = launch();
  ASSERT_NE(instance, nullptr);
  const std::string record = instance->record();

  instance.reset();
  auto adopted = fixture_->backend().adopt(record);

  ASSERT_TRUE(adopted.ok()) << adopted.error().message();
  EXPECT_EQ((*adopted)->record(), record);
  EXPECT_FALSE(over(**adopted));
  EXPECT_TRUE(AgentProbe(std::move(*(*adopted)->dial_agent(soon()))).hello(std::string(32, 's'), 1));
  EXPECT_TRUE((*adopted)->destroy(soon()).ok());
}

TEST_P(BackendContract, DoesNotAdoptWhatIsOver) {
  auto instance = launch();
  ASSERT_NE(instance, nullptr);
  const std::string record = instance->record();
  ASSERT_TRUE(instance->destroy(soon()).ok());

  const auto adopted = fixture_->backend().adopt(record);

  ASSERT_FALSE(adopted.ok());
  EXPECT_EQ(adopted.error().code(), ErrorCode::kNotFound);
}

TEST_P(BackendContract, AnswersARecordThatIsNoneWithAnError) {
  for (const std::string record : {"", "x", "plain1 -5 3 /x", "1 2 3", "\xff\xff\xff\xff"}) EXPECT_FALSE(fixture_->backend().adopt(record).ok());
}

TEST_P(BackendContract, SweepsWhatNoRecordNamesAndNothingElse) {
  auto kept = launch();
  auto lost = launch();
  ASSERT_TRUE(kept != nullptr && lost != nullptr);

  const auto swept = fixture_->backend().sweep({kept->record()});

  ASSERT_TRUE(swept.ok()) << swept.error().message();
  EXPECT_EQ(*swept, 1u);
  EXPECT_TRUE(over(*lost, 5s));
  EXPECT_FALSE(over(*kept));
  EXPECT_TRUE(kept->destroy(soon()).ok());
  EXPECT_TRUE(lost->destroy(soon()).ok());
}

TEST_P(BackendContract, SaysUnavailableWhereNothingListens) {
  auto instance = launch();
  ASSERT_NE(instance, nullptr);

  const auto port = instance->dial_port(9, soon());

  ASSERT_FALSE(port.ok());
  EXPECT_EQ(port.error().code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(instance->destroy(soon()).ok());
}

TEST_P(BackendContract, ListensOnTheLoopbackOfTheSandboxAndDialsIt) {
  auto instance = launch();
  ASSERT_NE(instance, nullptr);
  constexpr std::uint16_t kPort = 47113;

  auto listeners = instance->listen_loopback({{backend::LoopbackKind::kTcp, kPort}, {backend::LoopbackKind::kUdp, kPort}});

  ASSERT_TRUE(listeners.ok()) << listeners.error().message();
  EXPECT_EQ(listeners->size(), 2u);
  EXPECT_TRUE(instance->dial_port(kPort, soon()).ok());
  EXPECT_TRUE(instance->destroy(soon()).ok());
}

TEST_P(BackendContract, FreezesAndThawsIdempotently) {
  auto instance = launch();
  ASSERT_NE(instance, nullptr);

  EXPECT_TRUE(instance->freeze(soon()).ok());
  EXPECT_TRUE(instance->freeze(soon()).ok());
  EXPECT_TRUE(instance->thaw(soon()).ok());
  EXPECT_TRUE(instance->thaw(soon()).ok());
  EXPECT_TRUE(instance->destroy(soon()).ok());
}

TEST_P(BackendContract, DestroysAFrozenInstance) {
  auto instance = launch();
  ASSERT_NE(instance, nullptr);
  ASSERT_TRUE(instance->freeze(soon()).ok());

  EXPECT_TRUE(instance->destroy(soon()).ok());
  EXPECT_TRUE(over(*instance, 5s));
}

TEST_P(BackendContract, KillsAnOperationWithoutTouchingTheAgent) {
  auto instance = launch();
  ASSERT_NE(instance, nullptr);
  AgentProbe agent(std::move(*instance->dial_agent(soon())));
  ASSERT_TRUE(agent.hello(std::string(32, 's'), 1));
  auto operation = instance->open_operation("0123456789abcdef");
  ASSERT_TRUE(operation.ok()) << operation.error().message();

  EXPECT_FALSE((*operation)->populated());
  EXPECT_TRUE((*operation)->kill().ok());
  EXPECT_TRUE((*operation)->kill().ok());

  EXPECT_EQ((*operation)->cgroup_fd() >= 0, fixture_->operations_have_cgroups());
  agent.send(protocol::MessageType::kPing, protocol::encode(protocol::Ping{7}));
  EXPECT_TRUE(agent.wait_for(protocol::MessageType::kPong).has_value());
  EXPECT_TRUE(instance->destroy(soon()).ok());
}

TEST_P(BackendContract, RenewsAnOperationUntilItIsKilled) {
  auto instance = launch();
  ASSERT_NE(instance, nullptr);
  auto first = instance->open_operation("0123456789abcdef");
  ASSERT_TRUE(first.ok()) << first.error().message();

  auto second = (*first)->renew();

  ASSERT_EQ(second != nullptr, fixture_->operations_have_cgroups());
  if (second != nullptr) {
    EXPECT_TRUE((*first)->kill().ok()) << "it is over, and reaches nobody";
    EXPECT_EQ((*first)->renew(), nullptr);
    auto third = second->renew();
    ASSERT_NE(third, nullptr);
    EXPECT_TRUE(instance->find_operation(third->record()).ok());
    EXPECT_TRUE(third->kill().ok());
    EXPECT_EQ(third->renew(), nullptr);
  }
  EXPECT_TRUE(instance->destroy(soon()).ok());
}

TEST_P(BackendContract, OpensWhatWasWrittenForReadingOrSaysThatItKeepsNone) {
  auto instance = launch();
  ASSERT_NE(instance, nullptr);

  const auto tree = instance->open_written(fixture_->rootfs().upper);

  if (tree.ok()) {
    EXPECT_GT(tree->ids, 0u);
    EXPECT_LT(::openat(tree->directory.get(), "new", O_WRONLY | O_CREAT | O_CLOEXEC, 0600), 0);
  } else {
    EXPECT_EQ(tree.error().code(), ErrorCode::kUnsupported);
  }
  EXPECT_TRUE(instance->destroy(soon()).ok());
}

TEST_P(BackendContract, TellsItsUsage) {
  auto instance = launch();
  ASSERT_NE(instance, nullptr);

  EXPECT_TRUE(instance->usage().ok());
  EXPECT_TRUE(instance->destroy(soon()).ok());
}

TEST_P(BackendContract, NamesItselfInItsCapabilities) {
  const backend::Capabilities capabilities = fixture_->backend().capabilities();

  EXPECT_FALSE(capabilities.name.empty());
  EXPECT_TRUE(capabilities.available || !capabilities.reason.empty());
}

class PlainFixture final : public BackendFixture {
 public:
  PlainFixture() {
    if (::mkdtemp(directory_) == nullptr) reason_ = "no temporary directory";
    auto made = backend::fake::PlainBackend::create({.agent = DSEC_TEST_BIN "/dsec-agent", .directory = directory_});
    if (made.ok()) {
      backend_ = std::move(*made);
      if (!backend_->capabilities().available) reason_ = backend_->capabilities().reason;
    } else {
      reason_ = made.error().message();
    }
  }
  ~PlainFixture() override {
    if (backend_ && reason_.empty()) EXPECT_TRUE(backend_->sweep({}).ok());
    (void)sys::remove_tree_at(AT_FDCWD, directory_);
  }
  std::string unavailable() const override { return reason_; }
  backend::Backend& backend() override { return *backend_; }
  backend::Rootfs rootfs() override { return {}; }
  bool operations_have_cgroups() const override { return false; }

 private:
  char directory_[32] = "/tmp/dsec-plain-XXXXXX";
  std::string reason_;
  std::unique_ptr<backend::fake::PlainBackend> backend_;
};

INSTANTIATE_TEST_SUITE_P(Plain, BackendContract,
                         ::testing::Values(BackendCase{"plain", [] { return std::make_unique<PlainFixture>(); }}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace dsec::contract
