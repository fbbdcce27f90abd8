// The real agent where it belongs: PID 1 of a container, against a payload that
// is root inside and means harm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "agent/agent_test_client.h"
#include "root/support/engine.h"

namespace dsec::testing {
namespace {

using protocol::FileRequest;
using protocol::FileVerb;
using protocol::MessageType;
using ::testing::HasSubstr;
using ::testing::Not;

// bash, the tools that the tests use and their libraries, as the host has them.
const sys::Fd& debian_rootfs() {
  static const sys::Fd mount = [] {
    ScratchDirectory scratch;
    const std::string tree = scratch.path() + "/tree";
    const std::string command =
        "set -e; mkdir -p TREE/usr/bin TREE/usr/lib TREE/usr/lib64 TREE/usr/lib/x86_64-linux-gnu TREE/etc TREE/root TREE/var TREE/proc TREE/sys TREE/dev TREE/tmp; "
        "for d in bin lib lib64; do ln -s usr/$d TREE/$d; done; chmod 1777 TREE/tmp; chmod 700 TREE/root; "
        "for p in bash dash cat ls id tr stat grep head tail wc stty tty sleep cp mv env readlink chmod true touch; do cp -L /usr/bin/$p TREE/usr/bin/; "
        "ldd /usr/bin/$p | grep -o '/lib[^ ]*' | while read l; do cp -Ln $l TREE$l; done; done; ln -s dash TREE/usr/bin/sh; "
        "printf 'root:x:0:0:root:/root:/bin/bash\\nnobody:x:65534:65534::/nonexistent:/bin/sh\\n' > TREE/etc/passwd; "
        "printf 'root:x:0:\\ntty:x:5:\\nnogroup:x:65534:\\n' > TREE/etc/group";
    std::string filled;
    for (std::size_t at = 0; at < command.size();) {
      const std::size_t next = command.find("TREE", at);
      filled += command.substr(at, next - at);
      if (next == std::string::npos) break;
      filled += tree;
      at = next + 4;
    }
    if (std::system(filled.c_str()) != 0) std::abort();
    return erofs_of(tree);
  }();
  return mount;
}

class AgentInContainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    engine_ = std::make_unique<Engine>(EngineOptions{.agent = program_dir() + "/dsec-agent"});
    backend::Rootfs rootfs = engine_->rootfs();
    rootfs.layers = {{"debian", debian_rootfs().get()}};
    auto launched = engine_->backend().launch(engine_->spec(), rootfs, soon());
    ASSERT_TRUE(launched.ok()) << launched.error().message();
    instance_ = std::move(launched).value();
    auto stream = instance_->dial_agent(soon());
    ASSERT_TRUE(stream.ok()) << stream.error().message();
    client_ = std::make_unique<agent::AgentTestClient>(std::move(stream).value());
    ASSERT_TRUE(client_->hello(std::string(32, 's'), 1));
  }
  void TearDown() override {
    client_.reset();
    if (instance_) EXPECT_TRUE(instance_->destroy(soon()).ok());
  }
  static std::string text_of(const agent::AgentTestClient::Outcome& result) {
    return result.out + result.err + (result.failed ? "failed: " + result.failed->stage + " " + result.failed->message : "");
  }
  std::string shell(const std::string& command, const std::string& session = "") { return text_of(client_->shell(command, session)); }
  std::string as(const std::string& user, const std::string& command) {
    return text_of(client_->run({.op_id = "as-" + std::to_string(++count_), .shell = command, .user = user}));
  }

  struct Answer {
    protocol::FileReply last;
    std::string data;
  };
  Answer ask(FileRequest request, const std::optional<std::string>& upload = std::nullopt) {
    request.request_id = ++count_;
    client_->send(MessageType::kFileRequest, request);
    if (upload) client_->send(MessageType::kFileData, protocol::FileData{.request_id = count_, .bytes = *upload, .end = true});
    Answer answer;
    answer.last.error_number = -1;
    while (const auto frame = client_->next()) {
      if (frame->type == MessageType::kFileData) {
        answer.data += protocol::decode<protocol::FileData>(frame->body)->bytes;
        client_->send(MessageType::kFileAck, protocol::FileAck{.request_id = count_, .offset = answer.data.size()});
      }
      if (frame->type != MessageType::kFileReply) continue;
      answer.last = protocol::decode<protocol::FileReply>(frame->body).value();
      if (!answer.last.more) break;
    }
    return answer;
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<backend::Instance> instance_;
  std::unique_ptr<agent::AgentTestClient> client_;
  std::uint64_t count_ = 0;
};

TEST_F(AgentInContainerTest, GivesACommandTheFixedCapabilitiesAndNothingElse) {
  const std::string status = shell("grep -E '^(Cap(Bnd|Amb|Inh)|NoNewPrivs|SigBlk)' /proc/self/status");

  EXPECT_THAT(status, HasSubstr("CapBnd:\t00000000a00405fb"));
  EXPECT_THAT(status, HasSubstr("CapAmb:\t0000000000000000"));
  EXPECT_THAT(status, HasSubstr("CapInh:\t0000000000000000"));
  EXPECT_THAT(status, HasSubstr("SigBlk:\t0000000000000000"));
  EXPECT_EQ(shell("ls /proc/self/fd | tr '\\n' ' '"), "0 1 2 3 ");
  EXPECT_EQ(shell("cat /proc/self/oom_score_adj"), "500\n");
}

TEST_F(AgentInContainerTest, RunsAsOtherUsers) {
  EXPECT_EQ(as("nobody", "id -u; id -g; grep CapEff /proc/self/status; echo ok > /dev/stdout"), "65534\n65534\nCapEff:\t0000000000000000\nok\n");
  EXPECT_EQ(as("1234:99", "id -u; id -g"), "1234\n99\n");
  EXPECT_THAT(as("70000", "true"), HasSubstr("failed: user"));
}

TEST_F(AgentInContainerTest, KeepsSessionsThroughKillOfEverything) {
  shell("cd /usr; export FOO=bar; f() { echo fn; }", "s");

  client_->shell("kill -9 -1; kill -9 1");

  EXPECT_EQ(shell("pwd; echo $FOO; f", "s"), "/usr\nbar\nfn\n");
}

TEST_F(AgentInContainerTest, IsOutOfReachOfRootInside) {
  for (const char* file : {"mem", "environ", "maps", "auxv"}) {
    EXPECT_THAT(shell(std::string("head -c1 /proc/1/") + file), HasSubstr("ermission denied")) << file;
  }
  EXPECT_THAT(shell("ls -l /proc/1/fd/ /proc/1/exe /proc/1/root/"), HasSubstr("ermission denied"));
  EXPECT_EQ(shell("tr '\\0' ' ' < /proc/1/cmdline"), "aether ");
  EXPECT_EQ(shell("wc -l < /proc/net/unix"), "1\n") << "no socket to connect to";
  EXPECT_EQ(shell("kill -STOP 1; kill -TERM 1; echo $?").back(), '\n');
  client_->send(MessageType::kPing, protocol::Ping{.nonce = 3});
  EXPECT_TRUE(client_->await<protocol::Ping>(MessageType::kPong));
}

TEST_F(AgentInContainerTest, ServesFilesAndSessionsWhenTheShellIsReplaced) {
  shell("cd /tmp; kept=1", "s");
  const auto clean = client_->run({.op_id = "clean", .shell = "true"});
  ASSERT_EQ(ask({.verb = FileVerb::kWrite, .path = "/tmp/marker-shell", .mode = 0755}, "#!/bin/sh\necho marker >> /tmp/marker\n").last.error_number, 0);
  shell("cp /bin/bash /tmp/old-bash; mv /tmp/marker-shell /usr/bin/bash");

  const auto replaced = client_->run({.op_id = "replaced", .shell = "true"});
  const auto marker = ask({.verb = FileVerb::kRead, .path = "/tmp/marker"});
  const auto file = ask({.verb = FileVerb::kWrite, .path = "/tmp/after"}, "x");
  client_->run({.op_id = "restore", .argv = {"/tmp/old-bash", "-c", "mv /tmp/old-bash /usr/bin/bash"}});

  EXPECT_FALSE(clean.exited.shell_modified);
  EXPECT_TRUE(replaced.exited.shell_modified);
  EXPECT_EQ(marker.data, "marker\n") << "only the user's own command ran it";
  EXPECT_EQ(file.last.error_number, 0);
  EXPECT_EQ(shell("pwd; echo $kept", "s"), "/tmp\n1\n");
}

TEST_F(AgentInContainerTest, ServesFilesWithTheUsersRights) {
  ASSERT_EQ(ask({.verb = FileVerb::kWrite, .path = "/root/secret", .mode = 0600}, "s").last.error_number, 0);

  EXPECT_EQ(ask({.verb = FileVerb::kRead, .path = "/root/secret", .user = "nobody"}).last.error_number, EACCES);
  EXPECT_EQ(ask({.verb = FileVerb::kRead, .path = "/root/secret"}).data, "s");
  EXPECT_EQ(ask({.verb = FileVerb::kWrite, .path = "/tmp/own", .user = "nobody"}, "m").last.error_number, 0);
  EXPECT_EQ(shell("stat -c '%U %a' /root/secret /tmp/own"), "root 600\nnobody 644\n");
  EXPECT_NE(ask({.verb = FileVerb::kRead, .path = "/proc/1/environ"}).last.error_number, 0);
  EXPECT_EQ(ask({.verb = FileVerb::kTarOut, .path = "/etc"}).last.error_number, 0);
}

TEST_F(AgentInContainerTest, GivesATerminalThatItsUserOwns) {
  client_->start({.op_id = "t", .shell = "tty; stat -c %U $(tty); stty size; echo > /dev/tty", .user = "nobody", .terminal = {.wanted = true, .rows = 33, .columns = 77}});
  const auto outcome = client_->wait("t");

  EXPECT_THAT(outcome.out, HasSubstr("/dev/pts/0\r\nnobody\r\n33 77\r\n")) << text_of(outcome);
}

TEST_F(AgentInContainerTest, AnswersAfterAMemoryBomb) {
  const auto bomb = client_->run({.op_id = "memory", .shell = "x=aaaaaaaa; while :; do x=$x$x; done"}, std::chrono::seconds(60));

  EXPECT_EQ(bomb.code(), -9);
  EXPECT_EQ(shell("echo alive"), "alive\n");
}

TEST_F(AgentInContainerTest, AnswersUnderAForkBomb) {
  client_->start({.op_id = "bomb", .shell = "f() { f | f & }; f; sleep 1; echo full"});
  ASSERT_TRUE(client_->await<protocol::Output>(MessageType::kOutput, std::chrono::seconds(20)));

  const auto file = ask({.verb = FileVerb::kStat, .path = "/etc/passwd"});
  const std::string word = text_of(client_->run({.op_id = "word", .argv = {"cat", "/etc/passwd"}}));
  client_->send(MessageType::kPing, protocol::Ping{.nonce = 3});

  EXPECT_TRUE(client_->await<protocol::Ping>(MessageType::kPong));
  EXPECT_EQ(file.last.error_number, 0) << file.last.message;
  EXPECT_THAT(word, HasSubstr("root:x:0:0"));
}

}  // namespace
}  // namespace dsec::testing
