// The real dsec-agent, as an ordinary process, driven over its socket.
#include <gtest/gtest.h>
#include <linux/limits.h>

#include <chrono>
#include <thread>

#include "agent/agent_test_client.h"

namespace dsec::agent {
namespace {

using protocol::ExecStart;
using protocol::MessageType;

std::string agent_program() {
  char self[PATH_MAX] = {};
  if (::readlink("/proc/self/exe", self, sizeof self - 1) <= 0) return "dsec-agent";
  const std::string path(self);
  return path.substr(0, path.rfind('/') + 1) + "dsec-agent";
}

class AgentTest : public ::testing::Test {
 protected:
  AgentTest() : agent_(agent_program()), client_(agent_.socket_path()) {}
  void SetUp() override { ASSERT_TRUE(client_.hello(kSecret, 1)) << "no answer of " << agent_program(); }

  const std::string kSecret = std::string(32, 's');
  AgentProcess agent_;
  AgentTestClient client_;
};

TEST_F(AgentTest, AnswersAPing) {
  client_.send(MessageType::kPing, protocol::Ping{.nonce = 42});

  const auto pong = client_.await<protocol::Ping>(MessageType::kPong);

  ASSERT_TRUE(pong);
  EXPECT_EQ(pong->nonce, 42u);
}

TEST_F(AgentTest, RunsAProgramByArguments) {
  const auto outcome = client_.run({.op_id = "1", .argv = {"printf", "%s|", "a b", "", "$HOME"}});

  ASSERT_TRUE(outcome.answered);
  EXPECT_FALSE(outcome.failed);
  EXPECT_EQ(outcome.code(), 0);
  EXPECT_EQ(outcome.out, "a b||$HOME|");
}

TEST_F(AgentTest, RunsAShellCommandAndKeepsTheStreamsApart) {
  const auto outcome = client_.shell("echo out; echo err >&2; exit 7");

  EXPECT_EQ(outcome.code(), 7);
  EXPECT_EQ(outcome.out, "out\n");
  EXPECT_EQ(outcome.err, "err\n");
}

TEST_F(AgentTest, SaysWhyAProgramDidNotRun) {
  const auto missing = client_.run({.op_id = "1", .argv = {"no-such-program"}});
  const auto refused = client_.run({.op_id = "2", .argv = {"/etc/passwd"}});
  const auto nowhere = client_.run({.op_id = "3", .argv = {"true"}, .cwd = "/no/such/place"});
  const auto nobody = client_.run({.op_id = "4", .argv = {"true"}, .user = "no-such-user"});
  const auto both = client_.run({.op_id = "5", .argv = {"true"}, .shell = "true"});

  ASSERT_TRUE(missing.failed && refused.failed && nowhere.failed && nobody.failed && both.failed);
  EXPECT_EQ(missing.failed->stage, "exec");
  EXPECT_EQ(missing.failed->error_number, ENOENT);
  EXPECT_EQ(refused.failed->stage, "exec");
  EXPECT_EQ(refused.failed->error_number, EACCES);
  EXPECT_EQ(nowhere.failed->stage, "cwd");
  EXPECT_EQ(nowhere.failed->error_number, ENOENT);
  EXPECT_EQ(nobody.failed->stage, "user");
  EXPECT_EQ(both.failed->stage, "argument");
}

TEST_F(AgentTest, StartsWithThreeDescriptorsAndAnOpenSignalMask) {
  const auto outcome = client_.run({.op_id = "1", .argv = {"sh", "-c", "ls /proc/self/fd | tr '\\n' ' '; grep -E 'Sig(Blk|Ign)' /proc/self/status; umask"}});

  EXPECT_EQ(outcome.out, "0 1 2 3 SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n0022\n");  // 3 is ls's own
}

TEST_F(AgentTest, RunsAsAnotherUserWithItsGroups) {
  const auto outcome = client_.run({.op_id = "1", .shell = "id -u; id -G; echo $HOME $USER; echo hi > /dev/stdout", .user = "nobody"});
  const auto numbers = client_.run({.op_id = "2", .shell = "id -u; id -g", .user = "4321:77"});

  EXPECT_EQ(outcome.out, "65534\n65534\n/nonexistent nobody\nhi\n") << outcome.err;
  EXPECT_EQ(numbers.out, "4321\n77\n");
}

TEST_F(AgentTest, TellsTheSignalThatEndedACommand) {
  const auto outcome = client_.shell("kill -9 $$");

  EXPECT_EQ(outcome.code(), -9);
}

TEST_F(AgentTest, DoesNotWaitForWhoHoldsThePipe) {
  const Instant start = std::chrono::steady_clock::now();

  const auto outcome = client_.shell("sleep 300 & echo hi");

  EXPECT_EQ(outcome.out, "hi\n");
  EXPECT_EQ(outcome.code(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

TEST_F(AgentTest, PassesOnWhatComesAfterTheEnd) {
  client_.start({.op_id = "1", .shell = "(sleep 0.4; echo late) & echo early"});
  const auto outcome = client_.wait("1", std::chrono::seconds(10), false);
  ASSERT_EQ(outcome.out, "early\n");

  const auto late = client_.await<protocol::Output>(MessageType::kOutput);

  ASSERT_TRUE(late);
  EXPECT_EQ(late->offset, 6u);
  EXPECT_EQ(late->bytes, "late\n");
}

TEST_F(AgentTest, CarriesALongLineWithoutLoss) {
  constexpr std::size_t kBytes = 200'000'000;
  client_.start({.op_id = "1", .shell = "head -c 200000000 /dev/zero"});
  std::size_t total = 0;
  bool exited = false;
  while (!exited) {
    const auto frame = client_.next();
    ASSERT_TRUE(frame);
    if (frame->type == MessageType::kExited) exited = true;
    if (frame->type != MessageType::kOutput) continue;
    const auto output = protocol::decode<protocol::Output>(frame->body).value();
    if (output.stream != protocol::OutputStream::kStdout) continue;
    ASSERT_EQ(output.offset, total);
    total += output.bytes.size();
    client_.send(MessageType::kOutputAck, protocol::OutputAck{.op_id = "1", .stream = output.stream, .offset = total});
  }

  EXPECT_EQ(total, kBytes);
}

TEST_F(AgentTest, StopsReadingACommandWhoseOutputNobodyTakes) {
  client_.start({.op_id = "1", .shell = "head -c 10000000 /dev/zero"});
  std::size_t unacknowledged = 0;
  while (const auto frame = client_.next(std::chrono::milliseconds(500))) {
    if (frame->type == MessageType::kOutput) unacknowledged += protocol::decode<protocol::Output>(frame->body)->bytes.size();
  }

  // Another command is served meanwhile.
  const auto other = client_.run({.op_id = "2", .argv = {"echo", "ok"}});

  EXPECT_EQ(unacknowledged, protocol::kOutputWindow);
  EXPECT_EQ(other.out, "ok\n");
}

TEST_F(AgentTest, FeedsStandardInput) {
  client_.start({.op_id = "1", .argv = {"cat"}, .open_stdin = true});
  client_.send(MessageType::kStdin, protocol::Stdin{.op_id = "1", .offset = 0, .bytes = "one "});
  client_.send(MessageType::kStdin, protocol::Stdin{.op_id = "1", .offset = 2, .bytes = "e two", .end = true});  // repeats two bytes

  const auto outcome = client_.wait("1");

  EXPECT_EQ(outcome.code(), 0);
  EXPECT_EQ(outcome.out, "one two");
}

TEST_F(AgentTest, SaysThatACommandReadsNoMore) {
  client_.start({.op_id = "1", .shell = "exec <&-; sleep 5", .open_stdin = true});
  std::optional<protocol::StdinAck> ack;
  std::uint64_t offset = 0;
  const Deadline deadline = Deadline::in(std::chrono::seconds(5));
  while (!(ack && ack->closed) && !deadline.passed()) {
    client_.send(MessageType::kStdin, protocol::Stdin{.op_id = "1", .offset = offset, .bytes = "x"});
    ++offset;
    ack = client_.await<protocol::StdinAck>(MessageType::kStdinAck);
  }

  ASSERT_TRUE(ack);
  EXPECT_TRUE(ack->closed);
}

TEST_F(AgentTest, SendsSignalsToTheGroup) {
  client_.start({.op_id = "1", .shell = "trap 'exit 3' TERM; sleep 300 & echo ready; wait; exit 4"});
  auto ready = client_.await<protocol::Output>(MessageType::kOutput);
  ASSERT_TRUE(ready);

  client_.send(MessageType::kSignal, protocol::Signal{.op_id = "1", .number = SIGTERM});

  const auto exited = client_.await<protocol::Exited>(MessageType::kExited);
  ASSERT_TRUE(exited);
  EXPECT_EQ(WEXITSTATUS(exited->wait_status), 3);
}

TEST_F(AgentTest, GivesATerminal) {
  client_.start({.op_id = "1", .shell = "tty; stty size; read x; echo got:$x; stty size", .terminal = {.wanted = true, .rows = 40, .columns = 100}});
  client_.send(MessageType::kResize, protocol::Resize{.op_id = "1", .rows = 50, .columns = 90});
  client_.send(MessageType::kStdin, protocol::Stdin{.op_id = "1", .offset = 0, .bytes = "word\r"});

  const auto outcome = client_.wait("1");

  EXPECT_EQ(outcome.code(), 0);
  EXPECT_NE(outcome.out.find("/dev/pts/"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("got:word"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("50 90"), std::string::npos) << outcome.out;
}

TEST_F(AgentTest, InterruptsTheForegroundOfATerminal) {
  client_.start({.op_id = "1", .argv = {"bash", "-ic", "sh -c 'echo ready; exec sleep 300'; echo not here"}, .terminal = {.wanted = true}});
  std::string seen;
  while (seen.find("ready") == std::string::npos) {
    const auto output = client_.await<protocol::Output>(MessageType::kOutput);
    ASSERT_TRUE(output);
    seen += output->bytes;
  }

  client_.send(MessageType::kStdin, protocol::Stdin{.op_id = "1", .offset = 0, .bytes = "\x03"});
  const auto exited = client_.await<protocol::Exited>(MessageType::kExited);

  ASSERT_TRUE(exited);
}

TEST_F(AgentTest, RunsAnOperationOnce) {
  const std::string file = "/tmp/dsec-agent-once-" + std::to_string(::getpid());
  client_.start({.op_id = "1", .shell = "echo x >> " + file});
  client_.start({.op_id = "1", .shell = "echo x >> " + file});
  ASSERT_TRUE(client_.wait("1", std::chrono::seconds(5), false).answered);
  client_.start({.op_id = "1", .shell = "echo x >> " + file});
  ASSERT_TRUE(client_.await<protocol::Exited>(MessageType::kExited)) << "the end is repeated";

  const auto content = client_.run({.op_id = "2", .argv = {"cat", file}});
  ::unlink(file.c_str());

  EXPECT_EQ(content.out, "x\n");
}

TEST_F(AgentTest, RefusesAWrongSecretAndAnOldEpoch) {
  AgentTestClient liar(agent_.socket_path());
  AgentTestClient old(agent_.socket_path());

  EXPECT_FALSE(liar.hello(std::string(32, 'x'), 2));
  EXPECT_FALSE(old.hello(kSecret, 1));

  client_.send(MessageType::kPing, protocol::Ping{.nonce = 1});
  EXPECT_TRUE(client_.await<protocol::Ping>(MessageType::kPong)) << "the connection in use is untouched";
}

TEST_F(AgentTest, RefusesVersionsItDoesNotSpeak) {
  AgentTestClient newer(agent_.socket_path());
  newer.send(MessageType::kHello, protocol::Hello{.secret = kSecret, .epoch = 5, .version_min = 90, .version_max = 99});

  const auto frame = newer.next();

  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->type, MessageType::kProtocolError);
}

TEST_F(AgentTest, AnswersUnknownAndBrokenMessagesWithAnError) {
  client_.send_body(static_cast<MessageType>(55), "whatever");
  client_.send_body(MessageType::kExecStart, "\xff\xff\xff");
  client_.send_raw("noise between frames");

  EXPECT_TRUE(client_.await<protocol::ProtocolError>(MessageType::kProtocolError));
  EXPECT_TRUE(client_.await<protocol::ProtocolError>(MessageType::kProtocolError));
  client_.send(MessageType::kPing, protocol::Ping{.nonce = 1});
  EXPECT_TRUE(client_.await<protocol::Ping>(MessageType::kPong));
}

TEST_F(AgentTest, GoesOnWithANewEdgeFromTheLastAcknowledgedByte) {
  client_.start({.op_id = "1", .shell = "printf aaaa; sleep 0.6; printf bbbb; exit 5"});
  const auto first = client_.await<protocol::Output>(MessageType::kOutput);
  ASSERT_TRUE(first);
  ASSERT_EQ(first->bytes, "aaaa");
  client_.send(MessageType::kOutputAck, protocol::OutputAck{.op_id = "1", .offset = 2});
  client_.send(MessageType::kPing, protocol::Ping{});
  ASSERT_TRUE(client_.await<protocol::Ping>(MessageType::kPong));
  client_.disconnect();

  AgentTestClient next(agent_.socket_path());
  const auto reply = next.hello(kSecret, 2);
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->operations.size(), 1u);
  EXPECT_EQ(reply->operations[0].state, protocol::OperationState::kRunning);
  EXPECT_EQ(reply->operations[0].stdout_bytes, 4u);
  const auto again = next.await<protocol::Output>(MessageType::kOutput);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->offset, 2u);
  EXPECT_EQ(again->bytes, "aa");
  const auto exited = next.await<protocol::Exited>(MessageType::kExited);

  ASSERT_TRUE(exited);
  EXPECT_EQ(WEXITSTATUS(exited->wait_status), 5);
}

TEST_F(AgentTest, TellsAnEndThatCameWhileNobodyWasConnected) {
  client_.start({.op_id = "1", .shell = "echo done; sleep 0.2; exit 9"});
  // A request that was still under way when the next connection came would not be known.
  ASSERT_TRUE(client_.await<protocol::ExecStarted>(MessageType::kExecStarted));
  client_.disconnect();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));

  AgentTestClient next(agent_.socket_path());
  ASSERT_TRUE(next.hello(kSecret, 2));
  const auto outcome = next.wait("1");

  ASSERT_TRUE(outcome.answered);
  EXPECT_EQ(outcome.code(), 9);
  EXPECT_EQ(outcome.out, "done\n");
}

TEST_F(AgentTest, ForgetsWhatIsReleased) {
  ASSERT_TRUE(client_.shell("true").answered);
  client_.disconnect();

  AgentTestClient next(agent_.socket_path());
  const auto reply = next.hello(kSecret, 2);

  ASSERT_TRUE(reply);
  EXPECT_TRUE(reply->operations.empty());
}

TEST_F(AgentTest, ServesManyBirthsAtOnce) {
  for (int i = 0; i < 200; ++i) client_.start({.op_id = "b" + std::to_string(i), .argv = {"true"}});
  int ended = 0;
  while (ended < 200) {
    const auto exited = client_.await<protocol::Exited>(MessageType::kExited);
    ASSERT_TRUE(exited);
    ++ended;
  }

  EXPECT_EQ(ended, 200);
}

}  // namespace
}  // namespace dsec::agent
