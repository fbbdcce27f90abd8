#include "edge/exec_request.h"

#include <gtest/gtest.h>

#include "edge/wal_records.h"

namespace dsec::edge {
namespace {

std::string refusal(std::string_view json) {
  const Result<ExecRequest> parsed = parse_exec_request(json);
  return parsed.ok() ? "" : parsed.error().message();
}

TEST(ExecRequestTest, ReadsEveryField) {
  const Result<ExecRequest> parsed = parse_exec_request(
      R"({"shell":"x","session":"s","cwd":"/w","env":{"A":"b"},"user":"u","stdin":"in","open_stdin":true,"timeout_ms":5,
          "deadline_ms":6,"output_limit_bytes":7,"background":true,"key":"k","wait_ms":8,"kill_on_disconnect":true,
          "terminal":{"rows":30,"columns":100}})");

  ASSERT_TRUE(parsed.ok()) << parsed.error().message();
  EXPECT_EQ(parsed->env.at("A"), "b");
  EXPECT_EQ(parsed->stdin_bytes, "in");
  EXPECT_EQ(parsed->terminal.columns, 100);
  EXPECT_EQ(parsed->wait_ms, 8);
}

TEST(ExecRequestTest, RefusesWhatCannotBeRightAndNamesIt) {
  EXPECT_NE(refusal(R"({})").find("argv and shell"), std::string::npos);
  EXPECT_NE(refusal(R"({"argv":["a"],"shell":"b"})").find("argv and shell"), std::string::npos);
  EXPECT_NE(refusal(R"({"argv":["a"],"tiemout_ms":1})").find("tiemout_ms"), std::string::npos);
  EXPECT_NE(refusal(R"({"argv":["a"],"cwd":"relative"})").find("cwd"), std::string::npos);
  EXPECT_NE(refusal(R"({"argv":["a"],"env":{"B=C":"1"}})").find("B=C"), std::string::npos);
  EXPECT_NE(refusal(R"({"argv":["a"],"timeout_ms":-1})").find("timeout_ms"), std::string::npos);
  EXPECT_NE(refusal(R"({"argv":["a"],"stdin":"","stdin_base64":""})").find("stdin"), std::string::npos);
  EXPECT_FALSE(refusal("[").empty());
}

// Two texts must not run into one another; waits and delivery are no part of the command.
TEST(ExecRequestTest, TheFingerprintIsOfTheCommandAlone) {
  const auto print = [](std::string_view json) { return fingerprint(parse_exec_request(json).value()); };

  EXPECT_EQ(print(R"({"argv":["a"],"wait_ms":1,"key":"x"})"), print(R"({"argv":["a"],"background":true})"));
  EXPECT_NE(print(R"({"argv":["a","b"]})"), print(R"({"argv":["ab"]})"));
  EXPECT_NE(print(R"({"argv":["a"]})"), print(R"({"shell":"a"})"));
  EXPECT_NE(print(R"({"argv":["a"],"env":{"A":"B"}})"), print(R"({"argv":["a"]})"));
  EXPECT_NE(print(R"({"argv":["a"],"stdin":""})"), print(R"({"argv":["a"]})"));
}

TEST(ExecRequestTest, SignalsHaveNamesAndNumbers) {
  EXPECT_EQ(parse_signal("SIGTERM").value(), 15);
  EXPECT_EQ(parse_signal("INT").value(), 2);
  EXPECT_EQ(parse_signal("64").value(), 64);
  EXPECT_FALSE(parse_signal("65").ok());
  EXPECT_EQ(signal_name(9), "SIGKILL");
}

TEST(WalRecordsTest, AResultComesBackWhole) {
  OpFinishedRecord record{.id = "sandbox", .op_id = "op", .status = 3, .exit_code = -1, .signal = 9, .error = "e", .duration_usec = 7};
  record.oom_kills = 2;
  record.infra = true;
  record.streams[0] = {.total = 10, .stored = 9, .tail_offset = 4, .tail = std::string("\0\xff", 2), .ended = true};
  record.streams[1] = {.total = 1, .stored = 1, .tail_offset = 0, .tail = "x", .ended = false};

  const Result<OpFinishedRecord> back = decode_record<OpFinishedRecord>(encode(record));

  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->signal, 9);
  EXPECT_EQ(back->oom_kills, 2u);
  EXPECT_TRUE(back->infra);
  EXPECT_EQ(back->streams[0].tail, std::string("\0\xff", 2));
  EXPECT_TRUE(back->streams[0].ended);
  EXPECT_EQ(back->streams[1].tail, "x");
  EXPECT_EQ(sandbox_of(encode(record)).value(), "sandbox");
}

TEST(WalRecordsTest, AnAcceptanceKeepsItsSpec) {
  AcceptedRecord record{.id = "i", .project = "p"};
  record.spec.image = "debian:12";
  record.spec.labels = {{"job", "j1"}};
  record.spec.resources.memory_mb = 77;
  record.layer_digests = {"sha256:a", "sha256:b"};
  record.config.env = {{"PATH", "/bin"}};
  record.secret = std::string(32, '\0');

  const Result<AcceptedRecord> back = decode_record<AcceptedRecord>(encode(record));

  ASSERT_TRUE(back.ok()) << back.error().message();
  EXPECT_EQ(back->spec.labels, record.spec.labels);
  EXPECT_EQ(back->spec.resources.memory_mb, 77);
  EXPECT_EQ(back->layer_digests, record.layer_digests);
  EXPECT_EQ(back->config.env, record.config.env);
  EXPECT_EQ(back->secret, record.secret);
}

TEST(WalRecordsTest, GarbageIsAnErrorNotACrash) {
  EXPECT_FALSE(decode_record<OpFinishedRecord>("\xff\xff\xff").ok());
  EXPECT_FALSE(decode_record<AcceptedRecord>(std::string("\x0a\x7f", 2)).ok());
}

TEST(WalRecordsTest, TheSandboxOfARecordIsReadWhateverElseIsInIt) {
  EXPECT_EQ(sandbox_of(encode(ForgottenRecord{.id = "one", .erase = true})).value(), "one");
  EXPECT_EQ(sandbox_of(encode(LaunchedRecord{.id = "two", .backend_record = "b", .upper_record = "u"})).value(), "two");
  EXPECT_TRUE(decode_record<ForgottenRecord>(encode(ForgottenRecord{.id = "one", .erase = true})).value().erase);
  EXPECT_FALSE(decode_record<ForgottenRecord>(encode(ForgottenRecord{.id = "one"})).value().erase);
}

}  // namespace
}  // namespace dsec::edge
