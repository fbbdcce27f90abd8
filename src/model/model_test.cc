#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "base/encoding.h"
#include "model/json.h"
#include "model/json_text.h"
#include "model/principal.h"
#include "model/sandbox_id.h"
#include "model/selector.h"
#include "model/sha256.h"
#include "model/strict_object.h"
#include "model/time_text.h"

namespace dsec::model {
namespace {

Result<SandboxSpec> spec_of(std::string_view text) {
  DSEC_ASSIGN(const boost::json::value value, parse_json(text));
  DSEC_ASSIGN(SandboxSpec spec, spec_from_json(value, {"wait_ms"}));
  DSEC_TRY(validate(spec));
  return spec;
}

std::string refusal_of(std::string_view text) {
  Result<SandboxSpec> spec = spec_of(text);
  if (spec.ok()) return "accepted";
  EXPECT_EQ(spec.error().code(), ErrorCode::kInvalidArgument);
  return spec.error().message();
}

TEST(SandboxSpecTest, ReadsEveryFieldOfTheContract) {
  const std::string text = R"({"name":"a1","image":"debian:12","resources":{"cpu_cores":0.5,"memory_mb":64},
    "lifetime":{"idle_seconds":5,"on_timeout":"stop"},"network":{"mode":"proxy","services":["pypi"],
    "rules":[{"domain":"*.example.org","port":443},{"cidr":"10.0.0.0/8"}]},
    "start":{"argv":["sleep","1"],"ready":{"port":80}},"env":{"A":"b"},"labels":{"job":"j1"},"user":"root",
    "hostname":"h","priority":"batch","no_new_privs":true,"wait_ms":5})";

  const Result<SandboxSpec> spec = spec_of(text);

  ASSERT_TRUE(spec.ok()) << spec.error().message();
  EXPECT_EQ(spec->resources.memory_mb, 64);
  EXPECT_EQ(spec->resources.disk_mb, Resources{}.disk_mb);
  EXPECT_EQ(spec->network.rules.at(0).port, 443);
  EXPECT_EQ(spec->start->ready_port, 80);
  EXPECT_EQ(spec->priority, Priority::kBatch);
  const Result<SandboxSpec> again = spec_from_json(to_json(*spec));
  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_EQ(boost::json::serialize(to_json(*again)), boost::json::serialize(to_json(*spec)));
}

TEST(SandboxSpecTest, TakesReadinessBareOrNamed) {
  EXPECT_EQ(spec_of(R"({"image":"a","start":{"argv":["x"],"ready":8080}})")->start->ready_port, 8080);
  EXPECT_EQ(spec_of(R"({"image":"a","start":{"argv":["x"],"ready":"true"}})")->start->ready_command, "true");
  EXPECT_EQ(spec_of(R"({"image":"a","start":{"argv":["x"],"ready":{"command":"true"}}})")->start->ready_command, "true");
  EXPECT_NE(refusal_of(R"({"image":"a","start":{"argv":["x"],"ready":70000}})"), "accepted");
  EXPECT_NE(refusal_of(R"({"image":"a","start":{"argv":["x"],"ready":[]}})"), "accepted");
  EXPECT_NE(refusal_of(R"({"image":"a","start":"x"})"), "accepted");
}

TEST(SandboxSpecTest, NamesTheFieldThatItRefuses) {
  EXPECT_EQ(refusal_of(R"({"image":"a","colour":1})"), "unknown field \"colour\"");
  EXPECT_EQ(refusal_of(R"({"image":"a","network":{"mode":"proxy","rules":[{"domain":"a.b"},{"prt":1}]}})"),
            "unknown field \"network.rules[1].prt\"");
  EXPECT_EQ(refusal_of(R"({"image":7})"), "image: must be a string");
  EXPECT_EQ(refusal_of(R"({"image":"a","resources":{"memory_mb":1.5}})"), "resources.memory_mb: must be a whole number");
  EXPECT_EQ(refusal_of(R"({"image":"a","resources":{"memory_mb":1}})"), "resources.memory_mb: must be between 8 and 16777216");
  EXPECT_EQ(refusal_of(R"({})"), "image: is required (or environment.base)");
  EXPECT_EQ(refusal_of(R"({"image":"a","priority":"high"})"), "priority: must be latency or batch");
  EXPECT_EQ(refusal_of(R"([1])"), "the body must be a JSON object");
  EXPECT_NE(refusal_of(R"({"image":"a","name":"abcdefghijklmnopqrstuvwxyz"})"), "accepted");
  EXPECT_NE(refusal_of(R"({"image":"../../etc"})"), "accepted");
  EXPECT_NE(refusal_of(R"({"image":"a","network":{"services":["x"]}})"), "accepted");
}

TEST(SandboxJsonTest, SurvivesTheRoundTrip) {
  Sandbox sandbox;
  sandbox.id = "abc";
  sandbox.project = "p";
  sandbox.spec.image = "debian:12";
  sandbox.layer_digests = {"sha256:" + std::string(64, 'a')};
  sandbox.state = SandboxState::kEnded;
  sandbox.cause = EndCause::kAgentLost;
  sandbox.created_at_ms = 1'800'000'000'123;

  const boost::json::value text = to_json(sandbox);
  const Result<Sandbox> again = sandbox_from_json(text);

  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_EQ(again->created_at_ms, sandbox.created_at_ms);
  EXPECT_TRUE(again->infra());
  EXPECT_EQ(boost::json::serialize(to_json(*again)), boost::json::serialize(text));
}

TEST(LayerJsonTest, CarriesWhereAPackedLayerComesFrom) {
  LayerRecord layer;
  layer.digest = "sha256:" + std::string(64, 'a');
  layer.kind = LayerKind::kDiff;
  layer.provenance = Provenance{"box", 2, "team", "key_x", {"sha256:" + std::string(64, 'b')}};

  const Result<LayerRecord> read = layer_from_json(to_json(layer));

  ASSERT_TRUE(read.ok()) << read.error().message();
  EXPECT_EQ(*read, layer);
}

TEST(RoleTest, AreReadByTheNamesThatTheyHave) {
  for (const Role role : {Role::kViewer, Role::kRuntime, Role::kBuilder, Role::kAdmin}) EXPECT_EQ(parse_role(to_string(role)).value(), role);
  EXPECT_FALSE(parse_role("member").ok());
  EXPECT_FALSE(Principal{}.builds());
  EXPECT_TRUE((Principal{.role = Role::kBuilder}.builds()));
}

TEST(SandboxStateTest, EndsFromEveryStateAndNeverReturns) {
  for (int i = 0; i <= static_cast<int>(SandboxState::kEnding); ++i)
    EXPECT_TRUE(may_follow(static_cast<SandboxState>(i), SandboxState::kEnded));
  EXPECT_FALSE(may_follow(SandboxState::kEnded, SandboxState::kRunning));
  EXPECT_FALSE(may_follow(SandboxState::kEnding, SandboxState::kRunning));
  EXPECT_FALSE(may_follow(SandboxState::kQueued, SandboxState::kRunning));
}

TEST(SandboxStateTest, APauseLeadsThroughBothWaysAndBack) {
  using enum SandboxState;
  EXPECT_TRUE(may_follow(kRunning, kPausing));
  EXPECT_TRUE(may_follow(kPausing, kPaused));
  EXPECT_TRUE(may_follow(kPausing, kRunning)) << "a freeze that failed";
  EXPECT_TRUE(may_follow(kPaused, kResuming));
  EXPECT_TRUE(may_follow(kResuming, kRunning));
  EXPECT_TRUE(may_follow(kResuming, kPaused)) << "a thaw that failed";
  EXPECT_FALSE(may_follow(kStarting, kPausing));
  EXPECT_FALSE(may_follow(kQueued, kPaused));
  EXPECT_FALSE(may_follow(kPaused, kRunning)) << "the log has to say so before";
}

TEST(SandboxJsonTest, TellsOfAPauseWhileItLasts) {
  Sandbox sandbox;
  sandbox.state = SandboxState::kPaused;
  sandbox.pause = Pause{.at_ms = 1000, .reason = "idle", .wake = Wake::kHolder, .fence = 7, .left_ms = 5, .reclaimed_bytes = 9};
  sandbox.fence = 8;

  const boost::json::value paused = to_json(sandbox);
  sandbox.pause.reset();
  const boost::json::value running = to_json(sandbox);
  const Result<Sandbox> read = sandbox_from_json(paused);

  EXPECT_EQ(paused.at("pause_reason").as_string(), "idle");
  EXPECT_EQ(paused.at("wake").as_string(), "holder");
  EXPECT_EQ(paused.at("lifetime_left_ms").as_int64(), 5);
  EXPECT_EQ(paused.at("reclaimed_bytes").as_int64(), 9);
  EXPECT_FALSE(paused.as_object().contains("swapped_bytes")) << "not known";
  EXPECT_TRUE(running.at("paused_at").is_null());
  ASSERT_TRUE(read.ok()) << read.error().message();
  EXPECT_EQ(read->fence, 8u);
}

TEST(SandboxIdTest, OpensOnlyWhatItSealed) {
  SandboxIdSeal::Key key{};
  key[3] = 7;
  const SandboxIdSeal seal(key, 2);
  const SandboxRoute route{.unit = 1, .node = 65535, .epoch = 77, .counter = 123456789};

  const std::string id = seal.seal(route);

  ASSERT_EQ(id.size(), 26U);
  ASSERT_TRUE(seal.open(id).ok());
  EXPECT_EQ(*seal.open(id), route);
  EXPECT_FALSE(SandboxIdSeal(key, 1).open(id).ok());
  for (std::size_t i = 0; i < id.size(); ++i) {
    std::string other = id;
    other[i] = other[i] == 'a' ? 'b' : 'a';
    const Result<SandboxRoute> opened = seal.open(other);
    EXPECT_TRUE(!opened.ok() || !(*opened == route));
  }
  EXPECT_FALSE(seal.open(id + "a").ok());
  EXPECT_FALSE(seal.open("").ok());
  std::string upper = id;
  upper[0] = 'A';
  EXPECT_FALSE(seal.open(upper).ok());
}

TEST(SelectorTest, MatchesAsKubectlDoes) {
  const std::map<std::string, std::string> labels = {{"job", "j1"}, {"stage", "train"}};
  const auto matches = [&](std::string_view text) {
    const Result<Selector> selector = Selector::parse(text);
    return selector.ok() && selector->matches(labels);
  };
  EXPECT_TRUE(matches(""));
  EXPECT_TRUE(matches("job=j1,stage!=eval"));
  EXPECT_TRUE(matches("job == j1 , stage in (eval, train)"));
  EXPECT_TRUE(matches("!old,job"));
  EXPECT_TRUE(matches("team notin (a)"));
  EXPECT_FALSE(matches("job=j2"));
  EXPECT_FALSE(matches("stage notin (train)"));
  for (const char* bad : {"=x", "a in b", "a in (b", "a)b", ",", "a in (b) c", "a over (b)"})
    EXPECT_FALSE(Selector::parse(bad).ok()) << bad;
}

TEST(RefTest, SplitsNameAndTag) {
  EXPECT_EQ(parse_ref("debian")->text(), "debian:latest");
  EXPECT_EQ(parse_ref("a/b-c:1.0_x")->tag, "1.0_x");
  for (const char* bad : {"", ":x", "A", "a:", "a:b:c", "a b", ".a", "a:-x"}) EXPECT_FALSE(parse_ref(bad).ok()) << bad;
  EXPECT_TRUE(is_digest("sha256:" + std::string(64, '0')));
  EXPECT_FALSE(is_digest("sha256:" + std::string(64, 'G')));
}

TEST(ParseJsonTest, RefusesTwoFieldsOfOneNameAtEveryDepth) {
  for (const char* text : {R"({"a":1,"a":2})", R"({"b":{"a":1,"a":1}})", R"([{"x":0,"\u0078":0}])", R"({"a":{},"b":[],"a":{}})"})
    EXPECT_FALSE(parse_json(text).ok()) << text;
  for (const char* text : {R"({"a":1,"b":{"a":1}})", R"([{"a":1},{"a":1}])", R"({"a":"\":\\","b":":"})", R"({":":1})"})
    EXPECT_TRUE(parse_json(text).ok()) << text;
}

TEST(Sha256Test, DigestsOneTextAfterAnother) {
  constexpr std::string_view kOfAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

  const std::string first = sha256("abc");
  const std::string other = sha256("abd");

  EXPECT_EQ(to_hex(first), kOfAbc);
  EXPECT_NE(other, first);
  EXPECT_EQ(sha256("abc"), first);
}

TEST(JsonTextTest, WritesNumbersAsPlainDecimals) {
  const boost::json::object value = {{"whole", 2.0}, {"zero", 0.0}, {"part", 39.73}, {"small", 0.001}, {"list", {0.5, -1.25, 7}}, {"text", "a\"\n"}};

  EXPECT_EQ(json_text(value), R"({"whole":2,"zero":0,"part":39.73,"small":0.001,"list":[0.5,-1.25,7],"text":"a\"\n"})");
}

TEST(TimeTextTest, ReadsWhatItWrites) {
  EXPECT_EQ(time_text(1'800'000'000'007), "2027-01-15T08:00:00.007Z");
  EXPECT_EQ(*parse_time("2027-01-15T08:00:00.007Z"), 1'800'000'000'007);
  EXPECT_EQ(*parse_time("2027-01-15T08:00:00Z"), 1'800'000'000'000);
  for (const char* bad : {"", "2027-13-15T08:00:00Z", "2027-01-15 08:00:00Z", "2027-01-15T08:00:00.Z", "2027-01-15T08:00:00"})
    EXPECT_FALSE(parse_time(bad).ok()) << bad;
}

}  // namespace
}  // namespace dsec::model
