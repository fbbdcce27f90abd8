// Shell sessions through the real agent: what a person at a prompt expects.
#include <gtest/gtest.h>
#include <linux/limits.h>

#include "agent/agent_test_client.h"

namespace dsec::agent {
namespace {

class SessionTest : public ::testing::Test {
 protected:
  static std::string agent_program() {
    char self[PATH_MAX] = {};
    if (::readlink("/proc/self/exe", self, sizeof self - 1) <= 0) return "dsec-agent";
    const std::string path(self);
    return path.substr(0, path.rfind('/') + 1) + "dsec-agent";
  }
  SessionTest() : agent_(agent_program()), client_(agent_.socket_path()) {}
  void SetUp() override { ASSERT_TRUE(client_.hello("secret", 1)); }
  AgentTestClient::Outcome in(const std::string& command) { return client_.shell(command, "s"); }

  AgentProcess agent_;
  AgentTestClient client_;
};

TEST_F(SessionTest, KeepsDirectoryVariablesFunctionsAliasesAndOptions) {
  in("cd /usr/share; export FOO='a b'; plain=1; arr=(x 'y z'); greet() { echo \"hello $1\"; }; alias hi='echo alias'; set -o pipefail; shopt -s nullglob; umask 077");

  EXPECT_EQ(in("pwd").out, "/usr/share\n");
  EXPECT_EQ(in("echo \"$FOO|$plain|${arr[1]}\"; env | grep ^FOO; env | grep -c ^plain").out, "a b|1|y z\nFOO=a b\n0\n");
  EXPECT_EQ(in("greet you; hi there").out, "hello you\nalias there\n");
  EXPECT_EQ(in("false | true; echo $?; echo /no/such/*; umask").out, "1\n\n0077\n");
}

TEST_F(SessionTest, KeepsTheStatusAndTheOldDirectory) {
  in("cd /usr; cd /etc; (exit 5)");

  const auto outcome = in("echo $?; cd - ; echo $?");

  EXPECT_EQ(outcome.out, "5\n/usr\n0\n");
}

TEST_F(SessionTest, EndsAsTyped) {
  EXPECT_EQ(in("exit 3").code(), 3);
  EXPECT_EQ(in("false").code(), 1);
  EXPECT_EQ(in("x=kept; exit 4").code(), 4);
  EXPECT_EQ(in("echo $x").out, "kept\n");
  const auto syntax = in("if");
  EXPECT_EQ(syntax.code(), 2);
  EXPECT_NE(syntax.err.find("syntax error"), std::string::npos);
  EXPECT_EQ(in("no-such-command-here").code(), 127);
  EXPECT_EQ(in("kill -9 $$").code(), -9);
  EXPECT_EQ(in("exec sh -c 'exit 6'").code(), 6);
  EXPECT_EQ(in("echo ${unset?message}").code(), 127);
  EXPECT_EQ(in("cat <<X\nunfinished").out, "unfinished\n");
  EXPECT_EQ(in("echo $x").out, "kept\n");
}

TEST_F(SessionTest, ExitsAtTheFirstErrorWhenAskedTo) {
  const auto outcome = in("set -e; y=1; false; echo not here");

  EXPECT_EQ(outcome.code(), 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(in("echo $y; false; echo still not").out, "1\n");
  EXPECT_EQ(in("set +e; false; echo here").out, "here\n");
}

TEST_F(SessionTest, RunsAnExitTrapOfTheCommand) {
  const auto outcome = in("z=2; trap 'echo bye' EXIT; echo working");

  EXPECT_EQ(outcome.out, "working\nbye\n");
  EXPECT_EQ(in("echo $z").out, "2\n");
}

TEST_F(SessionTest, HidesItsDescriptorsFromCommands) {
  const auto outcome = in("ls /proc/self/fd | tr '\\n' ' '; (ls /proc/self/fd | tr '\\n' ' ')");

  EXPECT_EQ(outcome.out, "0 1 2 3 0 1 2 3 ");
}

TEST_F(SessionTest, LeavesBackgroundProcessesRunning) {
  const Instant start = std::chrono::steady_clock::now();
  const auto outcome = in("sleep 30 & echo $!");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  const std::string pid = outcome.out.substr(0, outcome.out.find('\n'));

  EXPECT_EQ(in("kill -0 " + pid + " && echo alive; kill " + pid).out, "alive\n");
}

TEST_F(SessionTest, SurvivesWhateverKillsItsShells) {
  in("cd /usr; precious=1");
  in("kill -9 $$");
  in("kill -TERM 0");

  EXPECT_EQ(in("pwd; echo $precious").out, "/usr\n1\n");
}

TEST_F(SessionTest, GivesDirectoryAndEnvironmentToProgramsWithoutAShell) {
  in("cd /usr/share; export FOO=bar");

  const auto outcome = client_.run({.op_id = "a", .argv = {"sh", "-c", "echo $PWD $FOO"}, .session = "s"});

  EXPECT_EQ(outcome.out, "/usr/share bar\n");
}

TEST_F(SessionTest, ForgetsWhatWasForOneCommandOnly) {
  in("cd /usr; export FOO=old");
  const auto once = client_.run({.op_id = "a", .shell = "echo $FOO $BAR $PWD; export NEW=1", .session = "s", .env = {"FOO=once", "BAR=once"}, .cwd = "/etc"});

  EXPECT_EQ(once.out, "once once /etc\n");
  EXPECT_EQ(in("echo $FOO [$BAR] $NEW $PWD").out, "old [] 1 /usr\n");
}

TEST_F(SessionTest, KeepsSessionsApart) {
  in("secret=1; cd /usr");

  const auto other = client_.shell("echo [$secret]", "t");

  EXPECT_EQ(other.out, "[]\n");
}

TEST_F(SessionTest, RunsCommandsOfOneSessionInOrder) {
  for (int i = 0; i < 5; ++i) {
    client_.start({.op_id = "q" + std::to_string(i), .shell = "sleep 0.0" + std::to_string(5 - i) + "; list+=(" + std::to_string(i) + ")", .session = "s"});
  }
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(client_.await<protocol::Exited>(protocol::MessageType::kExited));

  EXPECT_EQ(in("echo ${list[*]}").out, "0 1 2 3 4\n");
}

TEST_F(SessionTest, EndsACommandThatWaitsForItsTurn) {
  client_.start({.op_id = "first", .shell = "sleep 0.5", .session = "s"});
  client_.start({.op_id = "second", .shell = "echo never", .session = "s"});

  client_.send(protocol::MessageType::kSignal, protocol::Signal{.op_id = "second", .number = SIGKILL});
  const auto outcome = client_.wait("second");

  ASSERT_TRUE(outcome.failed);
  EXPECT_EQ(outcome.failed->stage, "session");
  EXPECT_EQ(outcome.failed->error_number, ECANCELED);
}

TEST_F(SessionTest, GoesOnWhenItsDirectoryIsGone) {
  in("mkdir -p /tmp/dsec-agent-gone/a/b; cd /tmp/dsec-agent-gone/a/b; rm -r /tmp/dsec-agent-gone");

  const auto outcome = in("pwd -P");

  EXPECT_EQ(outcome.out, "/tmp\n");
}

TEST_F(SessionTest, TakesNoStateFromAForgedDump) {
  in("ok=1");
  // The shell's own descriptor, found by the number that its saved copy has.
  in("for f in /proc/$$/fd/*; do echo garbage > $f; done 2>/dev/null; kill -9 $$");

  EXPECT_EQ(in("echo $ok").out, "1\n");
}

TEST_F(SessionTest, ListsItsSessionsToANewEdge) {
  in("true");
  client_.disconnect();

  AgentTestClient next(agent_.socket_path());
  const auto reply = next.hello("secret", 2);

  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->sessions, std::vector<std::string>{"s"});
}

}  // namespace
}  // namespace dsec::agent
