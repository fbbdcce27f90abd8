// A Dockerfile as stages of instructions.
//
// Read here: lines, continuations, comments, the escape directive, here-documents,
// flags, the JSON form. What an instruction means is resolved when its turn comes
// (step.h), because it may need the base image's environment. Every error names the
// line; an instruction, flag or form that is not supported is one, never passed over.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace dsec::build {

struct Heredoc {
  std::string name;
  std::string content;
  bool expand = true;  // the name stood without quotes
};

struct Instruction {
  std::size_t line = 0;  // the first one, from 1
  std::string name;      // "RUN"
  std::vector<std::pair<std::string, std::string>> flags;  // "chown" -> "1:1"
  std::string text;      // behind the flags, continuations joined
  bool json = false;     // the text was a JSON list of strings:
  std::vector<std::string> words;
  std::vector<Heredoc> heredocs;

  const std::string* flag(std::string_view name) const;
  // For people: on one line, cut.
  std::string summary() const;
};

struct Stage {
  std::size_t line = 0;
  std::string base;      // variables not put in
  std::string platform;  // the same; "" = none
  std::string name;      // lower case; "" = none
  std::vector<Instruction> instructions;
};

// What an engine builds: a Dockerfile, or what another front end made.
struct Plan {
  char escape = '\\';
  std::vector<Instruction> globals;  // ARG before the first FROM
  std::vector<Stage> stages;
};

inline constexpr std::size_t kMaxDockerfile = 1 << 20;
inline constexpr std::size_t kMaxInstructions = 1000;

Result<Plan> parse_dockerfile(std::string_view text);

}  // namespace dsec::build
