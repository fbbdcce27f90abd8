#include "protocol/agent_messages.h"

#include <gtest/gtest.h>

#include <random>

namespace dsec::protocol {
namespace {

template <typename M>
M round_trip(const M& message) {
  return decode<M>(encode(message)).value();
}

TEST(AgentMessagesTest, KeepsEveryFieldOfHello) {
  const Hello m = round_trip(Hello{.secret = std::string(32, '\xff'), .epoch = ~0ull, .version_min = 2, .version_max = 7, .no_new_privs = true});

  EXPECT_EQ(m.secret, std::string(32, '\xff'));
  EXPECT_EQ(m.epoch, ~0ull);
  EXPECT_EQ(m.version_min, 2u);
  EXPECT_EQ(m.version_max, 7u);
  EXPECT_TRUE(m.no_new_privs);
}

TEST(AgentMessagesTest, KeepsTheListsOfHelloReply) {
  HelloReply reply{.version = 1, .features = 31, .sessions = {"a", "", "b"}, .more = true};
  reply.operations.push_back({.op_id = "one", .state = OperationState::kExited, .wait_status = 0x8b, .stdout_bytes = 1ull << 40, .stderr_bytes = 3, .pid = 7});
  reply.operations.push_back({.op_id = "two"});

  const HelloReply m = round_trip(reply);

  ASSERT_EQ(m.operations.size(), 2u);
  EXPECT_EQ(m.operations[0].op_id, "one");
  EXPECT_EQ(m.operations[0].state, OperationState::kExited);
  EXPECT_EQ(m.operations[0].wait_status, 0x8b);
  EXPECT_EQ(m.operations[0].stdout_bytes, 1ull << 40);
  EXPECT_EQ(m.operations[0].pid, 7);
  EXPECT_EQ(m.operations[1].state, OperationState::kRunning);
  EXPECT_EQ(m.sessions, reply.sessions);
  EXPECT_TRUE(m.more);
}

TEST(AgentMessagesTest, KeepsEveryFieldOfExecStart) {
  const ExecStart m = round_trip(ExecStart{.op_id = "op", .argv = {"a", "", "c\0d"}, .shell = "echo", .session = "s", .env = {"A=1"}, .clear_env = true,
                                           .cwd = "/x", .user = "1:2", .open_stdin = true, .terminal = {.wanted = true, .rows = 65535, .columns = 1}, .with_cgroup = true});

  EXPECT_EQ(m.argv, (std::vector<std::string>{"a", "", "c"}));
  EXPECT_EQ(m.shell, "echo");
  EXPECT_EQ(m.session, "s");
  EXPECT_EQ(m.env, std::vector<std::string>{"A=1"});
  EXPECT_TRUE(m.clear_env);
  EXPECT_EQ(m.cwd, "/x");
  EXPECT_EQ(m.user, "1:2");
  EXPECT_TRUE(m.open_stdin);
  EXPECT_TRUE(m.terminal.wanted);
  EXPECT_EQ(m.terminal.rows, 65535);
  EXPECT_EQ(m.terminal.columns, 1);
  EXPECT_TRUE(m.with_cgroup);
}

TEST(AgentMessagesTest, KeepsEveryFieldOfTheOtherMessages) {
  EXPECT_EQ(round_trip(Ping{.nonce = 9}).nonce, 9u);
  EXPECT_EQ(round_trip(ExecStarted{.op_id = "o", .pid = 3}).pid, 3);
  EXPECT_EQ(round_trip(ExecStarted{.op_id = "o", .pid = 3, .age_usec = 7}).age_usec, 7u);
  const auto failed = round_trip(ExecFailed{.op_id = "o", .stage = "cwd", .error_number = 2, .message = "m"});
  EXPECT_EQ(failed.stage + failed.message, "cwdm");
  EXPECT_EQ(failed.error_number, 2);
  const auto output = round_trip(Output{.op_id = "o", .stream = OutputStream::kStderr, .offset = 5, .bytes = std::string("\0\n", 2), .end = true});
  EXPECT_EQ(output.stream, OutputStream::kStderr);
  EXPECT_EQ(output.bytes, std::string("\0\n", 2));
  EXPECT_TRUE(output.end);
  EXPECT_EQ(round_trip(OutputAck{.op_id = "o", .stream = OutputStream::kStderr, .offset = 8}).offset, 8u);
  const auto exited = round_trip(Exited{.op_id = "o", .wait_status = -1, .user_usec = 1, .system_usec = 2, .max_rss_kb = 3, .shell_modified = true});
  EXPECT_EQ(exited.wait_status, -1);
  EXPECT_EQ(exited.max_rss_kb, 3u);
  EXPECT_TRUE(exited.shell_modified);
  EXPECT_TRUE(round_trip(Stdin{.op_id = "o", .offset = 1, .bytes = "b", .end = true}).end);
  EXPECT_TRUE(round_trip(StdinAck{.op_id = "o", .offset = 1, .closed = true}).closed);
  const auto signal = round_trip(Signal{.op_id = "o", .number = 15, .scope = SignalScope::kProcess});
  EXPECT_EQ(signal.number, 15);
  EXPECT_EQ(signal.scope, SignalScope::kProcess);
  EXPECT_EQ(round_trip(Resize{.op_id = "o", .rows = 3, .columns = 4}).columns, 4);
  EXPECT_EQ(round_trip(Release{.op_id = "o"}).op_id, "o");
  EXPECT_EQ(round_trip(SessionClose{.session = "s"}).session, "s");
  EXPECT_EQ(round_trip(FileAck{.request_id = 1, .offset = 2}).offset, 2u);
  EXPECT_EQ(round_trip(FileCancel{.request_id = 4}).request_id, 4u);
  EXPECT_EQ(round_trip(ProtocolError{.message = "no"}).message, "no");
}

TEST(AgentMessagesTest, KeepsEveryFieldOfTheFileMessages) {
  const auto request = round_trip(FileRequest{.request_id = 1, .verb = FileVerb::kWatch, .path = "/p", .target = "/t", .user = "u", .offset = 2, .length = 3,
                                              .mode = 0644, .parents = true, .recursive = true, .limit = 4});
  EXPECT_EQ(request.verb, FileVerb::kWatch);
  EXPECT_EQ(request.path + request.target + request.user, "/p/tu");
  EXPECT_EQ(request.mode, 0644u);
  EXPECT_TRUE(request.parents && request.recursive);
  EXPECT_EQ(request.limit, 4u);
  FileReply reply{.request_id = 1, .more = true, .error_number = 13, .message = "m", .truncated = true};
  reply.entries.push_back({.path = "f", .type = FileType::kSocket, .size = 1ull << 50, .mode = 0755, .uid = 1, .gid = 2, .mtime_ns = -5, .user = "a", .group = "b", .target = "c"});
  reply.events.push_back({.kind = WatchKind::kOverflow, .path = "w"});
  const auto back = round_trip(reply);
  ASSERT_EQ(back.entries.size(), 1u);
  EXPECT_EQ(back.entries[0].mtime_ns, -5);
  EXPECT_EQ(back.entries[0].type, FileType::kSocket);
  EXPECT_EQ(back.entries[0].size, 1ull << 50);
  ASSERT_EQ(back.events.size(), 1u);
  EXPECT_EQ(back.events[0].kind, WatchKind::kOverflow);
  EXPECT_TRUE(back.more && back.truncated);
  EXPECT_EQ(round_trip(FileData{.request_id = 1, .offset = 2, .bytes = "x", .end = true}).bytes, "x");
}

TEST(AgentMessagesTest, SkipsFieldsThatItDoesNotKnow) {
  const std::string body = encode(Ping{.nonce = 9}) + std::string("\xfa\x07\x03xyz", 6);  // field 127, three bytes

  const auto ping = decode<Ping>(body);

  ASSERT_TRUE(ping.ok());
  EXPECT_EQ(ping->nonce, 9u);
}

TEST(AgentMessagesTest, RefusesValuesThatAMessageDoesNotAllow) {
  EXPECT_FALSE(decode<Output>(std::string("\x10\x03", 2)).ok()) << "an unknown stream";
  EXPECT_FALSE(decode<Resize>(std::string("\x10\x80\x80\x04", 4)).ok()) << "65,536 rows";
  EXPECT_FALSE(decode<Ping>(std::string("\x0a\x01x", 3)).ok()) << "bytes where a number belongs";
  EXPECT_FALSE(decode<Hello>(std::string("\x0a\x7fx", 3)).ok()) << "a length past the end";
}

// Whatever bytes come, decode answers: a message or an error.
TEST(AgentMessagesTest, SurvivesRandomBodies) {
  std::mt19937 random(7);
  std::string good = encode(ExecStart{.op_id = "op", .argv = {"a", "b"}, .env = {"A=1"}, .terminal = {.wanted = true}});
  for (int round = 0; round < 20'000; ++round) {
    std::string body = good;
    for (int i = 0; i < 3; ++i) body[random() % body.size()] = static_cast<char>(random());
    if (round % 3 == 0) body.resize(random() % body.size());

    (void)decode<ExecStart>(body).ok();
    (void)decode<FileReply>(body).ok();
    (void)decode<HelloReply>(body).ok();
  }
}

}  // namespace
}  // namespace dsec::protocol
