// Completion scripts for shells, made from the verbs and flags themselves.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace dsec::cli {

struct VerbNode {
  std::string name;
  std::string description;
  std::vector<std::string> flags;
  std::vector<std::string> arguments;  // "sandbox", "ref", …: what a positional names
  std::vector<VerbNode> verbs;
};

// The command line of this program (command_line.cc).
VerbNode verb_tree();

// For bash, zsh and fish. Sandbox names are asked of the server as they are wanted.
Result<std::string> completion_script(const std::string& shell, const VerbNode& root);

}  // namespace dsec::cli
