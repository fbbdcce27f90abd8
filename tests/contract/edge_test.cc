// The edge over HTTP, on the fake backend: lifecycle, commands, output, restart.

#include <fstream>

#include "edge_fixture.h"

namespace dsec::edge {
namespace {

std::string path_of(const std::string& id, const std::string& rest = "") { return "/v1/sandboxes/" + id + rest; }

TEST_F(EdgeTest, RunsACommandInASandboxAndEndsIt) {
  RunningEdge edge(directory_);
  const std::string id = edge.create();

  const json::object result = edge.exec(id, R"({"argv":["echo","hello"]})");

  EXPECT_EQ(result.at("stdout").as_string(), "hello\n");
  EXPECT_EQ(result.at("exit_code").as_int64(), 0);
  EXPECT_EQ(result.at("status").as_string(), "exited");
  const HttpAnswer ended = edge.call("DELETE", path_of(id));
  EXPECT_EQ(ended.status, 200);
  EXPECT_EQ(ended.json().at("state").as_string(), "ended");
  EXPECT_EQ(ended.json().at("cause").as_string(), "user");
  EXPECT_EQ(edge.call("DELETE", path_of(id)).status, 200);
}

TEST_F(EdgeTest, TellsAFailedStartFromAnExitCode) {
  RunningEdge edge(directory_);
  const std::string id = edge.create();

  const json::object missing = edge.exec(id, R"({"argv":["/no/such/program"]})");
  const json::object failing = edge.exec(id, R"({"shell":"exit 7"})");
  const json::object killed = edge.exec(id, R"({"shell":"kill -TERM $$"})");

  EXPECT_EQ(missing.at("status").as_string(), "failed");
  EXPECT_EQ(missing.at("exit_code").as_int64(), 127);
  EXPECT_EQ(failing.at("exit_code").as_int64(), 7);
  EXPECT_EQ(killed.at("status").as_string(), "signaled");
  EXPECT_EQ(killed.at("signal").as_string(), "SIGTERM");
}

TEST_F(EdgeTest, RefusesUnknownFieldsByName) {
  RunningEdge edge(directory_);
  const std::string id = edge.create();

  const HttpAnswer answer = edge.call("POST", path_of(id, "/exec"), R"({"argv":["true"],"colour":1})");

  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("colour"), std::string::npos);
}

TEST_F(EdgeTest, ATimeoutEndsTheCommandAndKeepsItsOutput) {
  RunningEdge edge(directory_);
  const std::string id = edge.create();

  const json::object result = edge.exec(id, R"({"shell":"echo before; sleep 600","timeout_ms":200})");

  EXPECT_EQ(result.at("status").as_string(), "timed_out");
  EXPECT_TRUE(result.at("timed_out").as_bool());
  EXPECT_EQ(result.at("stdout").as_string(), "before\n");
}

TEST_F(EdgeTest, TheSameKeyRunsOnceAndAnotherCommandUnderItIsRefused) {
  RunningEdge edge(directory_);
  const std::string id = edge.create();
  const std::string file = directory_ + "/count";
  const std::string body = R"({"shell":"echo x >> )" + file + R"(; echo done","key":"k1"})";

  const json::object first = edge.exec(id, body);
  const json::object again = edge.exec(id, body);
  const HttpAnswer other = edge.call("POST", path_of(id, "/exec"), R"({"shell":"true","key":"k1"})");

  EXPECT_EQ(first.at("exec_id"), again.at("exec_id"));
  EXPECT_TRUE(again.at("replayed").as_bool());
  EXPECT_EQ(again.at("stdout").as_string(), "done\n");
  EXPECT_EQ(std::filesystem::file_size(file), 2u);
  EXPECT_EQ(other.status, 409);
}

// Byte-exact, past the memory of a tail and into the spool.
TEST_F(EdgeTest, OutputOfAnyBytesIsReadByOffsetExactly) {
  RunningEdge edge(directory_);
  const std::string id = edge.create();
  const json::object result =
      edge.exec(id, R"body({"argv":["/usr/bin/python3","-c","import sys,hashlib\nd=b''.join(hashlib.sha256(b'%d'%i).digest() for i in range(40000))\nsys.stdout.buffer.write(d)\nprint(hashlib.sha256(d).hexdigest(),file=sys.stderr)"]})body");
  const std::string exec_id(result.at("exec_id").as_string());

  std::string whole;
  for (bool end = false; !end;) {
    const HttpAnswer part = edge.call("GET", path_of(id, "/exec/" + exec_id + "/output?wait_ms=1000&offset=" + std::to_string(whole.size())));
    ASSERT_EQ(part.status, 200);
    ASSERT_EQ(part.header("X-Dsec-Offset"), std::to_string(whole.size()));
    whole += part.body;
    end = part.header("X-Dsec-End") == "true";
  }

  EXPECT_EQ(whole.size(), 40000u * 32);
  EXPECT_EQ(result.at("stdout_bytes").as_int64(), 40000 * 32);
  EXPECT_FALSE(result.at("truncated").as_bool());
  EXPECT_TRUE(result.contains("stdout_base64"));
  std::string sum = std::string(result.at("stderr").as_string()).substr(0, 64);
  std::ofstream(directory_ + "/whole", std::ios::binary) << whole;
  const json::object checked = edge.exec(id, R"({"argv":["sha256sum",")" + directory_ + R"(/whole"]})");
  EXPECT_EQ(std::string(checked.at("stdout").as_string()).substr(0, 64), sum);
}

TEST_F(EdgeTest, OutputPastItsLimitIsCountedNotStored) {
  RunningEdge edge(directory_);
  const std::string id = edge.create();

  const json::object result = edge.exec(id, R"({"shell":"head -c 1000000 /dev/zero","output_limit_bytes":100000})");

  EXPECT_EQ(result.at("exit_code").as_int64(), 0);
  EXPECT_TRUE(result.at("truncated").as_bool());
  EXPECT_EQ(result.at("stdout_bytes").as_int64(), 1000000);
  EXPECT_EQ(result.at("stdout").as_string().size(), 100000u);
}

TEST_F(EdgeTest, AGrandchildThatHoldsThePipeDelaysNothing) {
  RunningEdge edge(directory_);
  const std::string id = edge.create();

  const json::object result = edge.exec(id, R"({"shell":"sleep 30 & echo out"})");

  EXPECT_EQ(result.at("stdout").as_string(), "out\n");
  EXPECT_LT(result.at("duration_ms").to_number<double>(), 5000);
}

TEST_F(EdgeTest, StdinIsFedWhileTheCommandRuns) {
  RunningEdge edge(directory_);
  const std::string id = edge.create();
  const std::string exec_id(edge.exec(id, R"({"argv":["cat"],"background":true,"open_stdin":true})").at("exec_id").as_string());

  EXPECT_EQ(edge.call("POST", path_of(id, "/exec/" + exec_id + "/stdin"), "one ").status, 200);
  EXPECT_EQ(edge.call("POST", path_of(id, "/exec/" + exec_id + "/stdin?end=true"), "two").status, 200);
  const HttpAnswer result = edge.call("GET", path_of(id, "/exec/" + exec_id + "?wait_ms=10000"));

  EXPECT_EQ(result.json().at("state").as_string(), "ended");
  EXPECT_EQ(result.json().at("stdout").as_string(), "one two");
}

TEST_F(EdgeTest, DeleteOfACommandEndsIt) {
  RunningEdge edge(directory_);
  const std::string id = edge.create();
  const std::string exec_id(edge.exec(id, R"({"argv":["sleep","600"],"background":true})").at("exec_id").as_string());

  const HttpAnswer killed = edge.call("DELETE", path_of(id, "/exec/" + exec_id));

  EXPECT_EQ(killed.status, 200);
  EXPECT_EQ(killed.json().at("status").as_string(), "killed");
}

TEST_F(EdgeTest, ARestartFindsSandboxesCommandsAndTheirOutput) {
  std::string id, running, finished;
  {
    RunningEdge edge(directory_);
    id = edge.create(R"(,"name":"kept","labels":{"job":"j1"})");
    finished = edge.exec(id, R"({"shell":"echo past","key":"k"})").at("exec_id").as_string();
    running = edge.exec(id, R"({"shell":"echo first; read line; echo got $line","background":true,"open_stdin":true})").at("exec_id").as_string();
    edge.stop(Edge::Sandboxes::kKeep);
  }

  RunningEdge edge(directory_);
  HttpAnswer result = edge.call("GET", path_of("kept", "/exec/" + finished));
  EXPECT_EQ(result.json().at("stdout").as_string(), "past\n");
  EXPECT_EQ(edge.call("GET", path_of("kept")).json().at("state").as_string(), "running");
  EXPECT_EQ(edge.call("GET", path_of("kept")).json().at("id").as_string(), id);
  for (int i = 0; i < 100 && edge.call("POST", path_of(id, "/exec/" + running + "/stdin"), "again\n").status != 200; ++i) usleep(20'000);
  result = edge.call("GET", path_of(id, "/exec/" + running + "?wait_ms=10000"));

  EXPECT_EQ(result.json().at("state").as_string(), "ended") << result.body;
  EXPECT_EQ(result.json().at("stdout").as_string(), "first\ngot again\n") << result.body;
  const json::object replayed = edge.exec(id, R"({"shell":"echo past","key":"k"})");
  EXPECT_TRUE(replayed.at("replayed").as_bool());
}

TEST_F(EdgeTest, AnAgentThatDiesEndsTheSandboxWithoutBlamingThePlatform) {
  RunningEdge edge(directory_);
  const std::string id = edge.create();

  edge.exec(id, R"({"shell":"kill -9 $PPID","wait_ms":100})");
  HttpAnswer view;
  for (int i = 0; i < 200; ++i) {
    view = edge.call("GET", path_of(id));
    if (view.json().at("state").as_string() == "ended") break;
    usleep(20'000);
  }

  EXPECT_EQ(view.json().at("state").as_string(), "ended");
  EXPECT_EQ(view.json().at("cause").as_string(), "env_destroyed");
  EXPECT_FALSE(view.json().at("infra").as_bool());
}

TEST_F(EdgeTest, TheSameIdempotencyKeyIsTheSameSandbox) {
  RunningEdge edge(directory_);
  const std::string body = R"({"backend":"fake","image":"test:1"})";

  const HttpAnswer first = edge.call("POST", "/create", body, "Idempotency-Key: a\r\n");
  const HttpAnswer again = edge.call("POST", "/create", body, "Idempotency-Key: a\r\n");
  const HttpAnswer other = edge.call("POST", "/create", R"({"backend":"fake","image":"test:2"})", "Idempotency-Key: a\r\n");

  EXPECT_EQ(first.json().at("id"), again.json().at("id"));
  EXPECT_EQ(other.status, 409);
}

TEST_F(EdgeTest, AFullNodeRefusesWithAReason) {
  RunningEdge edge(directory_, {.max_live = 1});
  edge.create();

  const HttpAnswer refused = edge.call("POST", "/create", R"({"backend":"fake","image":"test:1"})");

  EXPECT_EQ(refused.status, 429);
  EXPECT_NE(refused.body.find("limit"), std::string::npos);
  EXPECT_FALSE(refused.header("Retry-After").empty());
}

TEST_F(EdgeTest, TheEndOfTheStartCommandIsTheEndOfTheSandbox) {
  RunningEdge edge(directory_);
  const std::string id = edge.create(R"(,"start":{"argv":["sleep","0.3"]})");
  HttpAnswer view;

  for (int i = 0; i < 200; ++i) {
    view = edge.call("GET", path_of(id));
    if (view.json().at("state").as_string() == "ended") break;
    usleep(20'000);
  }

  EXPECT_EQ(view.json().at("cause").as_string(), "exit");
}

}  // namespace
}  // namespace dsec::edge
