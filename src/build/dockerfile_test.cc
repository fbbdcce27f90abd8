#include "build/dockerfile.h"

#include <gtest/gtest.h>

#include "build/step.h"
#include "build/words.h"

namespace dsec::build {
namespace {

Plan parsed(std::string_view text) {
  Result<Plan> plan = parse_dockerfile(text);
  EXPECT_TRUE(plan.ok()) << (plan.ok() ? "" : plan.error().message());
  return plan.ok() ? std::move(plan).value() : Plan{.stages = {Stage{}}};
}

std::string refused(std::string_view text) {
  const Result<Plan> plan = parse_dockerfile(text);
  return plan.ok() ? "taken" : plan.error().message();
}

std::string expanded(std::string_view word) {
  const Lookup lookup = [](std::string_view name) -> std::optional<std::string> {
    if (name == "A") return "value";
    if (name == "EMPTY") return "";
    return std::nullopt;
  };
  const Result<std::string> out = expand(word, lookup, '\\');
  return out.ok() ? *out : "! " + out.error().message();
}

// The step of the last instruction of a Dockerfile, those before it having had their effect.
Result<Step> last_step(std::string_view text, StageState& state) {
  const Plan plan = parsed(text);
  state.escape = plan.escape;
  Result<Step> step = Step();
  for (const Instruction& instruction : plan.stages.back().instructions) {
    step = resolve(instruction, state);
    if (!step.ok()) return step;
  }
  return step;
}

TEST(WordsTest, VariablesQuotesAndEscapesAreDockers) {
  EXPECT_EQ(expanded("a$A-${A}b"), "avalue-valueb");
  EXPECT_EQ(expanded("'$A' \"$A\" \\$A"), "$A value $A");
  EXPECT_EQ(expanded("${NONE:-d}${NONE-d}${EMPTY-d}${EMPTY:-d}"), "ddd");
  EXPECT_EQ(expanded("${A:+set}${NONE:+set}${EMPTY+set}${EMPTY:+set}"), "setset");
  EXPECT_EQ(expanded("${NONE:-${A:-x}}"), "value");
  EXPECT_EQ(expanded("$ $1 a$"), "$ $1 a$");
  EXPECT_EQ(expanded("\"a\\b\\\"c\""), "a\\b\"c");
}

TEST(WordsTest, WhatHasNoEndOrNoMeaningIsRefused) {
  for (const char* word : {"${A", "${", "${}", "\"a", "'a", "${A:-x", "${A#b}", "${A:?}x${NONE:?gone}", "${1}"}) EXPECT_EQ(expanded(word).substr(0, 2), "! ") << word;
  std::string deep;
  for (int i = 0; i < 100'000; i++) deep += "${X:-";
  EXPECT_EQ(expanded(deep).substr(0, 2), "! ");
}

TEST(DockerfileTest, LinesAreJoinedAndCommentsLeftOut) {
  const Plan plan = parsed("# comment\nFROM a AS Base\nRUN one \\\n  # inside\n\n  two \\  \n  three\n  ENV X=1\n");

  ASSERT_EQ(plan.stages.size(), 1U);
  EXPECT_EQ(plan.stages[0].name, "base");
  ASSERT_EQ(plan.stages[0].instructions.size(), 2U);
  EXPECT_EQ(plan.stages[0].instructions[0].text, "one   two   three");
  EXPECT_EQ(plan.stages[0].instructions[0].line, 3U);
  EXPECT_EQ(plan.stages[0].instructions[1].line, 8U);
}

TEST(DockerfileTest, TheEscapeDirectiveAndJsonForms) {
  const Plan plan = parsed("# syntax=docker/dockerfile:1\n# escape=`\nFROM a\nRUN one `\n two\nCMD [\"a\", \"b c\"]\nRUN [ -f x ] && y\r\n");

  EXPECT_EQ(plan.escape, '`');
  const std::vector<Instruction>& all = plan.stages[0].instructions;
  EXPECT_EQ(all[0].text, "one  two");
  EXPECT_TRUE(all[1].json);
  EXPECT_EQ(all[1].words, (std::vector<std::string>{"a", "b c"}));
  EXPECT_FALSE(all[2].json);
  EXPECT_EQ(all[2].text, "[ -f x ] && y");
}

TEST(DockerfileTest, HereDocumentsEndAtTheirNames) {
  const Plan plan = parsed("FROM a\nCOPY <<one <<-'two' /d/\n$x\none\n\t y\n\ttwo\nRUN cat <<EOF\nEOF \nEOF\nRUN echo a << b\n");

  const std::vector<Instruction>& all = plan.stages[0].instructions;
  ASSERT_EQ(all.size(), 3U);
  ASSERT_EQ(all[0].heredocs.size(), 2U);
  EXPECT_EQ(all[0].heredocs[0].content, "$x\n");
  EXPECT_TRUE(all[0].heredocs[0].expand);
  EXPECT_EQ(all[0].heredocs[1].content, " y\n");
  EXPECT_FALSE(all[0].heredocs[1].expand);
  EXPECT_EQ(all[1].heredocs[0].content, "EOF \n");
  EXPECT_TRUE(all[2].heredocs.empty());
}

TEST(DockerfileTest, ErrorsNameTheirLine) {
  EXPECT_NE(refused("FROM a\n\nNOPE x\n").find("line 3"), std::string::npos);
  EXPECT_NE(refused("RUN x\n").find("line 1"), std::string::npos);
  EXPECT_NE(refused("FROM a AS 1x\n").find("line 1"), std::string::npos);
  EXPECT_NE(refused("FROM a AS x\nFROM b AS X\n").find("line 2"), std::string::npos);
  EXPECT_NE(refused("FROM a\nRUN <<E\nnever\n").find("no end"), std::string::npos);
  EXPECT_NE(refused("FROM a\nCOPY --exclude=x a b\n").find("--exclude"), std::string::npos);
  EXPECT_NE(refused("FROM a\nENV\n").find("says nothing"), std::string::npos);
  EXPECT_NE(refused(std::string("FROM a\nRUN x\0y\n", 14)).find("NUL"), std::string::npos);
  EXPECT_NE(refused("").find("no FROM"), std::string::npos);
}

TEST(StepTest, ConfigurationIsWhatWasSaid) {
  StageState state;
  state.config.command = {"of the base"};
  const Result<Step> step = last_step("FROM a\nENV A=1 B=\"$A two\"\nENV C old form\nLABEL x=$B\nWORKDIR /w\nWORKDIR sub/../dir\nEXPOSE 80 7000-7001\nENTRYPOINT run $A\n", state);

  ASSERT_TRUE(step.ok());
  EXPECT_EQ(state.config.env, (std::map<std::string, std::string>{{"A", "1"}, {"B", " two"}, {"C", "old form"}}));
  EXPECT_EQ(state.config.labels.at("x"), " two");
  EXPECT_EQ(state.config.cwd, "/w/dir");
  EXPECT_EQ(state.config.exposed_ports, (std::vector<std::string>{"80/tcp", "7000/tcp", "7001/tcp"}));
  EXPECT_EQ(state.config.entrypoint, (std::vector<std::string>{"/bin/sh", "-c", "run $A"}));
  EXPECT_TRUE(state.config.command.empty()) << "the base's command was for the base's entrypoint";
}

TEST(StepTest, ArgumentsAreOfTheCallThenOfTheDefault) {
  StageState state;
  state.offered = {{"GIVEN", "call"}};
  const Result<Step> step = last_step("FROM a\nARG GIVEN=x OTHER=${GIVEN}y\nARG UNSET\nRUN echo\n", state);

  ASSERT_TRUE(step.ok());
  EXPECT_EQ(std::get<RunStep>(*step).args, (std::map<std::string, std::string>{{"GIVEN", "call"}, {"OTHER", "cally"}}));
  EXPECT_EQ(std::get<RunStep>(*step).argv, (std::vector<std::string>{"/bin/sh", "-c", "echo"}));
}

TEST(StepTest, MountsAreTakenOrRefused) {
  StageState state;
  const Result<Step> step = last_step("FROM a\nRUN --mount=type=secret,id=k --mount=type=secret,id=l,target=/etc/l,mode=0444,uid=7 --mount=type=cache,target=/c/,id=z,sharing=locked --network=none x\n", state);

  ASSERT_TRUE(step.ok()) << step.error().message();
  const RunStep& run = std::get<RunStep>(*step);
  ASSERT_EQ(run.secrets.size(), 2U);
  EXPECT_EQ(run.secrets[0].target, "/run/secrets/k");
  EXPECT_EQ(run.secrets[1].mode, 0444U);
  EXPECT_EQ(run.scratch, (std::vector<std::string>{"/c"}));
  EXPECT_FALSE(run.network);
  for (const char* mount : {"type=bind,target=/x", "target=/x", "type=ssh", "type=secret,id=../x", "type=secret", "type=cache", "type=cache,target=/", "type=secret,id=a,env=B", "type=cache,target=/x,from=y"}) {
    StageState fresh;
    EXPECT_FALSE(last_step(std::string("FROM a\nRUN --mount=") + mount + " x\n", fresh).ok()) << mount;
  }
}

TEST(StepTest, CopiesSayWhereTo) {
  StageState state;
  state.config.cwd = "/w";
  const Result<Step> step = last_step("FROM a\nENV D=dir\nCOPY --from=b --chown=1:2 --chmod=0640 a b ./$D/\n", state);

  ASSERT_TRUE(step.ok());
  const CopyStep& copy = std::get<CopyStep>(*step);
  EXPECT_EQ(copy.from, "b");
  EXPECT_EQ(copy.spec.destination, "/w/dir/");
  EXPECT_EQ(copy.spec.owner, "1:2");
  EXPECT_EQ(*copy.spec.mode, 0640);
  EXPECT_TRUE(copy.spec.keep_owners);
  for (const char* line : {"COPY a", "ADD http://x /", "COPY --chmod=9 a b", "COPY --from= a b", "COPY --chmod=77777 a b"}) {
    StageState fresh;
    EXPECT_FALSE(last_step(std::string("FROM a\n") + line + "\n", fresh).ok()) << line;
  }
}

TEST(StepTest, AScriptWithItsOwnFirstLineIsRunByWhatThatNames) {
  StageState state;
  const Result<Step> step = last_step("FROM a\nRUN <<E\n#!/usr/bin/env -S python3 -u\nprint(1)\nE\n", state);

  ASSERT_TRUE(step.ok());
  EXPECT_EQ(std::get<RunStep>(*step).argv, (std::vector<std::string>{"/usr/bin/env", "-S python3 -u", std::string(kScriptPath)}));
  EXPECT_EQ(std::get<RunStep>(*step).script, "#!/usr/bin/env -S python3 -u\nprint(1)\n");
}

}  // namespace
}  // namespace dsec::build
