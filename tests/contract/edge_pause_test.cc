// Pause and resume over HTTP, on the fake backend: order, fences, clocks, restart.

#include <random>

#include "edge_fixture.h"

namespace dsec::edge {
namespace {

std::string path_of(const std::string& id, const std::string& rest = "") { return "/v1/sandboxes/" + id + rest; }

class EdgePauseTest : public EdgeTest {
 protected:
  static std::string state(RunningEdge& edge, const std::string& id) {
    return std::string(edge.call("GET", path_of(id)).json().at("state").as_string());
  }
  static HttpAnswer pause(RunningEdge& edge, const std::string& id, const std::string& body = "{}", const std::string& headers = "") {
    return edge.call("POST", path_of(id, "/pause"), body, headers);
  }
  static HttpAnswer resume(RunningEdge& edge, const std::string& id, const std::string& headers = "") {
    return edge.call("POST", path_of(id, "/resume"), "{}", headers);
  }
};

TEST_F(EdgePauseTest, PausesAndResumesAndBothAreIdempotent) {
  RunningEdge edge(directory_);
  const std::string id = edge.create();

  const HttpAnswer paused = pause(edge, id, R"({"reason":"waits for the model"})");
  const HttpAnswer again = pause(edge, id, R"({"reason":"once more"})");
  const HttpAnswer resumed = resume(edge, id);
  const HttpAnswer running = resume(edge, id);

  EXPECT_EQ(paused.status, 200) << paused.body;
  EXPECT_EQ(paused.json().at("state").as_string(), "paused");
  EXPECT_EQ(paused.json().at("pause_reason").as_string(), "waits for the model");
  EXPECT_TRUE(paused.json().at("expires_at").is_null());
  EXPECT_GT(paused.json().at("lifetime_left_ms").as_int64(), 86'000'000);
  EXPECT_EQ(again.json().at("paused_at"), paused.json().at("paused_at"));
  EXPECT_EQ(again.json().at("pause_reason").as_string(), "waits for the model");
  EXPECT_EQ(resumed.json().at("state").as_string(), "running");
  EXPECT_TRUE(resumed.json().at("paused_at").is_null());
  EXPECT_FALSE(resumed.json().at("expires_at").is_null());
  EXPECT_EQ(running.status, 200);
}

TEST_F(EdgePauseTest, ACommandWakesItAndALookDoesNot) {
  RunningEdge edge(directory_);
  const std::string id = edge.create();
  edge.exec(id, R"({"shell":"echo once","key":"k"})");
  pause(edge, id);

  edge.call("GET", path_of(id, "/exec"));
  edge.call("GET", path_of(id, "/events"));
  edge.call("PATCH", path_of(id), R"({"labels":{"a":"b"}})");
  const json::object replayed = edge.exec(id, R"({"shell":"echo once","key":"k"})");
  const std::string after_looks = state(edge, id);
  const HttpAnswer refused = edge.call("POST", path_of(id, "/exec"), R"({"argv":["true"],"colour":1})");
  const std::string after_a_bad_one = state(edge, id);
  const json::object fresh = edge.exec(id, R"({"shell":"echo back"})");

  EXPECT_TRUE(replayed.at("replayed").as_bool());
  EXPECT_EQ(after_looks, "paused");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(after_a_bad_one, "paused");
  EXPECT_EQ(fresh.at("stdout").as_string(), "back\n");
  EXPECT_EQ(state(edge, id), "running");
}

TEST_F(EdgePauseTest, ARestartFindsItAsTheLogHasIt) {
  std::string paused, resumed;
  std::int64_t left = 0;
  {
    RunningEdge edge(directory_);
    paused = edge.create();
    resumed = edge.create();
    left = pause(edge, paused).json().at("lifetime_left_ms").as_int64();
    pause(edge, resumed);
    resume(edge, resumed);
    edge.stop(Edge::Sandboxes::kKeep);
  }

  RunningEdge edge(directory_);

  const json::value found = edge.call("GET", path_of(paused)).json();
  EXPECT_EQ(found.at("state").as_string(), "paused");
  EXPECT_EQ(found.at("lifetime_left_ms").as_int64(), left);
  EXPECT_EQ(state(edge, resumed), "running");
  EXPECT_EQ(edge.exec(paused, R"({"shell":"echo back"})").at("stdout").as_string(), "back\n");
  EXPECT_EQ(edge.exec(resumed, R"({"shell":"echo too"})").at("stdout").as_string(), "too\n");
}

TEST_F(EdgePauseTest, ALowerFenceIsRefusedAndNeverWakes) {
  RunningEdge edge(directory_);
  const std::string id = edge.create();
  pause(edge, id, R"({"wake":"holder"})", "X-Dsec-Fence: 7\r\n");

  const HttpAnswer old = edge.call("POST", path_of(id, "/exec"), R"({"argv":["true"]})", "X-Dsec-Fence: 6\r\n");
  const HttpAnswer none = edge.call("POST", path_of(id, "/exec"), R"({"argv":["true"]})");
  const HttpAnswer nobody = resume(edge, id);
  const HttpAnswer wrong = resume(edge, id, "X-Dsec-Fence: seven\r\n");
  const std::string before = state(edge, id);
  const HttpAnswer holder = edge.call("POST", path_of(id, "/exec"), R"({"argv":["true"]})", "X-Dsec-Fence: 8\r\n");
  const HttpAnswer late = edge.call("GET", path_of(id), "", "X-Dsec-Fence: 7\r\n");

  EXPECT_EQ(old.status, 409);
  EXPECT_EQ(old.json().at("error").at("details").at("current_fence").as_string(), "7") << old.body;
  EXPECT_EQ(none.status, 409) << none.body;
  EXPECT_EQ(nobody.status, 409);
  EXPECT_EQ(wrong.status, 400);
  EXPECT_EQ(before, "paused");
  EXPECT_EQ(holder.status, 200) << holder.body;
  EXPECT_EQ(late.status, 409);
}

TEST_F(EdgePauseTest, AFenceOutlivesARestart) {
  std::string id;
  {
    RunningEdge edge(directory_);
    id = edge.create();
    edge.call("GET", path_of(id), "", "X-Dsec-Fence: 40\r\n");
    edge.stop(Edge::Sandboxes::kKeep);
  }

  RunningEdge edge(directory_);

  EXPECT_EQ(pause(edge, id, "{}", "X-Dsec-Fence: 39\r\n").status, 409);
  EXPECT_EQ(pause(edge, id, "{}", "X-Dsec-Fence: 40\r\n").status, 200);
}

TEST_F(EdgePauseTest, APauseForTheHolderNamesIt) {
  RunningEdge edge(directory_);
  const std::string id = edge.create();

  EXPECT_EQ(pause(edge, id, R"({"wake":"holder"})").status, 400);
  EXPECT_EQ(pause(edge, id, R"({"wake":"nobody"})").status, 400);
  EXPECT_EQ(pause(edge, id, R"({"colour":1})").status, 400);
  EXPECT_EQ(edge.call("GET", path_of(id, "/pause")).status, 405);
  EXPECT_EQ(state(edge, id), "running");
}

TEST_F(EdgePauseTest, ItsLifetimeAndATimeoutStandStill) {
  RunningEdge edge(directory_);
  const std::string id = edge.create(R"(,"lifetime":{"max_seconds":3})");

  pause(edge, id);
  std::this_thread::sleep_for(std::chrono::milliseconds(4500));  // the clocks are the kernel's and the system's
  const std::string meanwhile = state(edge, id);
  const HttpAnswer back = resume(edge, id);

  EXPECT_EQ(meanwhile, "paused");
  EXPECT_EQ(back.json().at("state").as_string(), "running");
  EXPECT_EQ(edge.exec(id, R"({"shell":"echo back"})").at("stdout").as_string(), "back\n");
}

TEST_F(EdgePauseTest, IsPausedOnItsTimeoutsWhereThatIsAskedFor) {
  RunningEdge edge(directory_);
  const std::string idle = edge.create(R"(,"lifetime":{"idle_seconds":1,"on_timeout":"pause"})");
  const std::string old = edge.create(R"(,"lifetime":{"max_seconds":1,"on_timeout":"pause"})");
  const auto reason = [&](const std::string& id) {
    const json::value found = edge.call("GET", path_of(id)).json();
    return found.at("state").as_string() == "paused" ? std::string(found.at("pause_reason").as_string()) : std::string();
  };

  for (int i = 0; i < 200 && (reason(idle).empty() || reason(old).empty()); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));

  EXPECT_EQ(reason(idle), "idle");
  EXPECT_EQ(reason(old), "ttl");
  EXPECT_EQ(edge.exec(idle, R"({"shell":"echo back"})").at("stdout").as_string(), "back\n");
  EXPECT_FALSE(resume(edge, old).json().at("expires_at").is_null()) << "its lifetime is given anew";
}

TEST_F(EdgePauseTest, AnIdleEndAndAPauseAtTheSameMomentHaveOneOutcome) {
  RunningEdge edge(directory_);
  std::vector<std::string> made;
  for (int i = 0; i < 10; ++i) made.push_back(edge.create(R"(,"lifetime":{"idle_seconds":1})"));

  std::vector<std::future<HttpAnswer>> calls;
  for (std::size_t i = 0; i < made.size(); ++i)
    calls.push_back(std::async(std::launch::async, [&, i] {
      std::this_thread::sleep_for(std::chrono::milliseconds(800 + 100 * i));
      return pause(edge, made[i]);
    }));

  for (std::size_t i = 0; i < made.size(); ++i) {
    const HttpAnswer answer = calls[i].get();
    const json::value found = edge.call("GET", path_of(made[i])).json();
    if (answer.status == 200) {
      EXPECT_EQ(found.at("state").as_string(), "paused");
    } else {
      EXPECT_EQ(answer.status, 409) << answer.body;
      EXPECT_EQ(edge.call("GET", path_of(made[i]) + "?wait_ms=10000").json().at("cause").as_string(), "idle");
    }
  }
}

TEST_F(EdgePauseTest, DeleteEndsAPausedOne) {
  RunningEdge edge(directory_);
  const std::string id = edge.create();
  pause(edge, id);

  const HttpAnswer ended = edge.call("DELETE", path_of(id));

  EXPECT_EQ(ended.status, 200) << ended.body;
  EXPECT_EQ(ended.json().at("cause").as_string(), "user");
  EXPECT_EQ(pause(edge, id).status, 409);
  EXPECT_EQ(resume(edge, id).status, 409);
}

// The last one that was called holds; nothing waits for ever, no command is lost.
TEST_F(EdgePauseTest, OfAnyNumberOfRacingCallsTheLastOneHolds) {
  RunningEdge edge(directory_);
  const std::string id = edge.create();
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));

  for (int round = 0; round < 1000; ++round) {
    std::vector<std::future<HttpAnswer>> calls;
    for (int i = 0; i < 4; ++i) {
      const unsigned what = random() % 3;
      calls.push_back(std::async(std::launch::async, [&edge, id, what] {
        if (what == 2) return edge.call("POST", path_of(id, "/exec"), R"({"argv":["true"],"wait_ms":0})");
        return what == 0 ? pause(edge, id) : resume(edge, id);
      }));
    }
    const bool pauses = random() % 2 == 0;
    for (auto& call : calls) {
      const HttpAnswer answer = call.get();
      ASSERT_TRUE(answer.status == 200 || answer.status == 202) << answer.status << answer.body;
    }
    const HttpAnswer last = pauses ? pause(edge, id) : resume(edge, id);
    ASSERT_EQ(last.status, 200) << last.body;
    ASSERT_EQ(state(edge, id), pauses ? "paused" : "running");
  }
  resume(edge, id);
  for (int i = 0; i < 200; ++i) {
    if (edge.call("GET", path_of(id, "/exec?state=running")).json().at("items").as_array().empty()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }

  EXPECT_TRUE(edge.call("GET", path_of(id, "/exec?state=running")).json().at("items").as_array().empty()) << "a command was left behind";
}

TEST_F(EdgePauseTest, ABulkPauseHoldsWhoComesLaterUntilTheSameSelectorResumes) {
  RunningEdge edge(directory_);
  std::vector<std::string> made;
  for (int i = 0; i < 12; ++i) made.push_back(edge.create(R"(,"labels":{"job":"a"})"));
  const std::string other = edge.create(R"(,"labels":{"job":"b"})");

  const json::array paused = edge.call("POST", "/bulk/pause?selector=job%3Da").json().as_array();
  std::future<HttpAnswer> late = std::async(std::launch::async, [&] { return edge.call("POST", "/create", R"({"backend":"fake","image":"test:1","name":"late","labels":{"job":"a"}})"); });
  for (int i = 0; i < 200 && edge.call("GET", path_of("late")).status != 200; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const std::string held = state(edge, "late");
  const HttpAnswer refused = edge.call("POST", path_of("late", "/exec"), R"({"argv":["true"]})");
  const json::array another = edge.call("POST", "/bulk/resume").json().as_array();
  const std::string still = state(edge, "late");
  const json::array resumed = edge.call("POST", "/bulk/resume?selector=job%3Da").json().as_array();

  EXPECT_EQ(paused.size(), made.size());
  for (const json::value& result : paused) EXPECT_EQ(result.at("state").as_string(), "paused") << json::serialize(result);
  EXPECT_EQ(state(edge, other), "running");
  EXPECT_EQ(held, "queued");
  EXPECT_EQ(refused.status, 409);
  EXPECT_EQ(another.size(), made.size() + 2);
  EXPECT_EQ(still, "queued") << "it is held by the other pause";
  EXPECT_EQ(resumed.size(), made.size() + 1);
  EXPECT_EQ(late.get().status, 201);
  EXPECT_EQ(edge.exec("late", R"({"shell":"echo begun"})").at("stdout").as_string(), "begun\n");
}

TEST_F(EdgePauseTest, AHoldAndWhomItHoldsOutliveARestart) {
  std::string id;
  {
    RunningEdge edge(directory_);
    edge.call("POST", "/bulk/pause?selector=job");
    std::future<HttpAnswer> held = std::async(std::launch::async, [&] { return edge.call("POST", "/create", R"({"backend":"fake","image":"test:1","name":"held","labels":{"job":"a"}})"); });
    for (int i = 0; i < 200 && edge.call("GET", path_of("held")).status != 200; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    id = edge.call("GET", path_of("held")).json().at("id").as_string();
    edge.call("PATCH", path_of(id), R"({"labels":{"job":"b"}})");
    edge.stop(Edge::Sandboxes::kKeep);
  }

  RunningEdge edge(directory_);

  EXPECT_EQ(state(edge, id), "queued");
  EXPECT_EQ(edge.call("POST", "/bulk/resume?selector=job").json().as_array().size(), 1u);
  EXPECT_EQ(edge.exec(id, R"({"shell":"echo begun"})").at("stdout").as_string(), "begun\n");
  EXPECT_EQ(json::parse(edge.call("GET", "/node").body).at("holds").as_int64(), 0);
}

TEST_F(EdgePauseTest, DeleteEndsAHeldOne) {
  RunningEdge edge(directory_);
  edge.call("POST", "/bulk/pause");
  std::future<HttpAnswer> create = std::async(std::launch::async, [&] { return edge.call("POST", "/create", R"({"backend":"fake","image":"test:1","name":"held"})"); });
  for (int i = 0; i < 200 && edge.call("GET", path_of("held")).status != 200; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));

  const HttpAnswer ended = edge.call("DELETE", path_of("held"));

  EXPECT_EQ(ended.status, 200) << ended.body;
  EXPECT_EQ(create.get().status, 409);
}

TEST_F(EdgePauseTest, ABulkStopEndsPausedAndHeldOnes) {
  RunningEdge edge(directory_);
  for (int i = 0; i < 3; ++i) edge.create();
  edge.call("POST", "/bulk/pause");
  std::future<HttpAnswer> create = std::async(std::launch::async, [&] { return edge.call("POST", "/create", R"({"backend":"fake","image":"test:1","name":"held"})"); });
  for (int i = 0; i < 200 && edge.call("GET", path_of("held")).status != 200; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));

  const json::array ended = edge.call("POST", "/bulk/stop").json().as_array();

  EXPECT_EQ(ended.size(), 4u);
  for (const json::value& result : ended) EXPECT_EQ(result.at("state").as_string(), "ended") << json::serialize(result);
  EXPECT_EQ(create.get().status, 409);
}

}  // namespace
}  // namespace dsec::edge
