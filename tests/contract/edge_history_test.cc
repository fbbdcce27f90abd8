// Sandboxes that have ended: one listing over memory and history, names, and forgetting.

#include "edge_fixture.h"

namespace dsec::edge {
namespace {

// One of each stays in memory; the rest leaves it at the next turn of the housekeeping.
const Limits kShortMemory{.max_ended = 1, .max_deleted = 1};

std::string path_of(const std::string& ref, const std::string& query = "") { return "/v1/sandboxes/" + ref + query; }

void end(RunningEdge& edge, const std::string& id) { EXPECT_EQ(edge.call("DELETE", path_of(id)).json().at("state").as_string(), "ended"); }

void wait_for_the_history(RunningEdge& edge) {
  for (int i = 0; i < 500; ++i) {
    if (edge.call("GET", "/node").json().at("sandboxes").at("remembered").as_int64() <= 1) return;
    usleep(20'000);
  }
  FAIL() << "ended sandboxes stay in memory";
}

struct Listed {
  std::vector<std::string> ids;
  std::string cursor;
};

Listed page(RunningEdge& edge, const std::string& query, const std::string& cursor = "") {
  const HttpAnswer answer = edge.call("GET", "/v1/sandboxes?" + query + "&cursor=" + cursor);
  EXPECT_EQ(answer.status, 200) << answer.body;
  const json::value shown = answer.json();
  Listed out{.ids = {}, .cursor = std::string(shown.at("next_cursor").as_string())};
  for (const json::value& item : shown.at("items").as_array()) out.ids.emplace_back(item.at("id").as_string());
  return out;
}

std::vector<std::string> whole(RunningEdge& edge, const std::string& query) {
  std::vector<std::string> all;
  for (std::string cursor;;) {
    const Listed part = page(edge, query, cursor);
    all.insert(all.end(), part.ids.begin(), part.ids.end());
    if (part.cursor.empty()) return all;
    cursor = part.cursor;
  }
}

class EdgeHistoryTest : public EdgeTest {};

TEST_F(EdgeHistoryTest, APageGoesOnWhileSandboxesMoveFromMemoryToHistory) {
  RunningEdge edge(directory_, kShortMemory);
  std::vector<std::string> made;
  for (int i = 0; i < 12; ++i) made.push_back(edge.create(i % 2 ? R"(,"labels":{"odd":"1"})" : ""));
  for (int i = 0; i < 6; ++i) end(edge, made[static_cast<std::size_t>(i)]);

  std::vector<std::string> seen;
  std::size_t next_end = 6;
  for (std::string cursor;;) {
    const Listed part = page(edge, "state=all&limit=3", cursor);
    seen.insert(seen.end(), part.ids.begin(), part.ids.end());
    if (part.cursor.empty()) break;
    cursor = part.cursor;
    if (next_end < made.size()) end(edge, made[next_end]);
    next_end += 2;
    wait_for_the_history(edge);
  }

  EXPECT_EQ(seen, made);
}

TEST_F(EdgeHistoryTest, StatesAndSelectorsSeeTheHistory) {
  RunningEdge edge(directory_, kShortMemory);
  std::vector<std::string> odd, even;
  for (int i = 0; i < 4; ++i) {
    odd.push_back(edge.create(R"(,"labels":{"odd":"1"})"));
    even.push_back(edge.create());
  }
  for (int i = 0; i < 3; ++i) end(edge, odd[static_cast<std::size_t>(i)]);
  wait_for_the_history(edge);

  EXPECT_EQ(whole(edge, "state=ended&limit=2"), std::vector<std::string>(odd.begin(), odd.begin() + 3));
  EXPECT_EQ(whole(edge, "state=all&limit=2&selector=odd%3D1"), odd);
  EXPECT_EQ(whole(edge, "state=&limit=2&selector=odd%3D1"), std::vector<std::string>{odd[3]});
  EXPECT_EQ(whole(edge, "state=running&limit=2&selector=!odd"), even);
  EXPECT_EQ(edge.call("GET", "/v1/sandboxes?state=gone").status, 400);
  EXPECT_EQ(edge.call("GET", "/v1/sandboxes?cursor=zzz").status, 400);
  EXPECT_EQ(edge.call("GET", "/v1/sandboxes?state=all&limit=0").status, 400);
}

TEST_F(EdgeHistoryTest, ANameIsTheLiveOneElseTheOneThatEndedLast) {
  RunningEdge edge(directory_, kShortMemory);
  const std::string first = edge.create(R"(,"name":"n")");
  end(edge, first);
  const std::string second = edge.create(R"(,"name":"n")");
  const auto id_at = [&](const std::string& ref) { return std::string(edge.call("GET", path_of(ref)).json().at("id").as_string()); };
  EXPECT_EQ(id_at("n"), second);
  end(edge, second);
  for (int i = 0; i < 2; ++i) end(edge, edge.create());
  wait_for_the_history(edge);

  EXPECT_EQ(id_at("n"), second);
  EXPECT_EQ(id_at(first.substr(0, 20)), first);
  EXPECT_EQ(edge.call("GET", path_of("n", "?for=never")).status, 400);
  EXPECT_EQ(edge.call("GET", path_of("n", "?wait_ms=60000")).status, 200);
  EXPECT_EQ(edge.call("PATCH", path_of("n"), "{}").status, 409);
  EXPECT_EQ(edge.call("GET", path_of("nn")).status, 404);
}

TEST_F(EdgeHistoryTest, WhatTheHistoryAloneHasIsForgottenForGood) {
  std::vector<std::string> made;
  {
    RunningEdge edge(directory_, kShortMemory);
    for (int i = 0; i < 3; ++i) made.push_back(edge.create(R"(,"name":"n")")), end(edge, made.back());
    wait_for_the_history(edge);

    EXPECT_EQ(edge.call("DELETE", path_of(made[0], "?forget=true")).status, 200);
    EXPECT_EQ(edge.call("DELETE", path_of(made[2], "?forget=true")).status, 200);

    EXPECT_EQ(edge.call("GET", path_of(made[0])).status, 404);
    EXPECT_EQ(edge.call("DELETE", path_of(made[0], "?forget=true")).status, 404);
    EXPECT_EQ(edge.call("GET", path_of("n")).json().at("id").as_string(), made[1]);
    EXPECT_EQ(whole(edge, "state=all"), std::vector<std::string>{made[1]});
  }
  RunningEdge again(directory_, kShortMemory);

  EXPECT_EQ(again.call("GET", path_of(made[2])).status, 404);
  EXPECT_EQ(whole(again, "state=all"), std::vector<std::string>{made[1]});
}

TEST_F(EdgeHistoryTest, AKeyOfAForgottenSandboxMakesNoOther) {
  RunningEdge edge(directory_, kShortMemory);
  const std::string body = R"({"backend":"fake","image":"test:1"})";
  const HttpAnswer made = edge.call("POST", "/create", body, "Idempotency-Key: k\r\n");
  const std::string id(made.json().at("id").as_string());

  EXPECT_EQ(edge.call("DELETE", path_of(id, "?forget=true")).status, 200);

  EXPECT_EQ(edge.call("POST", "/create", body, "Idempotency-Key: k\r\n").status, 409);
}

}  // namespace
}  // namespace dsec::edge
