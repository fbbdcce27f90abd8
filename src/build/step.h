// What an instruction means where it stands: the typed step, and what it changes in
// the image's configuration. Pure; no I/O.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "build/dockerfile.h"
#include "image/copy_spec.h"
#include "model/layer.h"

namespace dsec::build {

// What a stage has said so far.
struct StageState {
  char escape = '\\';
  model::ImageConfig config;
  std::map<std::string, std::string> args;     // declared in this stage, with a value
  std::map<std::string, std::string> offered;  // values that an ARG without one takes: of the call, before FROM, the platform's
  bool command_set = false;  // here, not by the base
};

struct SecretMount {
  std::string id;
  std::string target;  // absolute
  std::uint32_t mode = 0400;
  std::uint32_t uid = 0;
  bool required = false;
};

struct RunStep {
  std::vector<std::string> argv;
  std::string script;                        // a here-document with a first line of its own; argv's last word is where it lies
  std::map<std::string, std::string> args;   // ARGs, seen as environment
  std::vector<SecretMount> secrets;
  std::vector<std::string> scratch;          // targets of type=cache and type=tmpfs: their content enters no layer
  bool network = true;                       // --network=none: not even the named services
};

struct CopyStep {
  std::string from;  // "" = the context; else what --from says
  image::CopySpec spec;
};

// std::monostate: the configuration alone has changed.
using Step = std::variant<std::monostate, RunStep, CopyStep>;

inline constexpr std::string_view kScriptPath = "/dev/shm/.dsec-script";

Result<Step> resolve(const Instruction& instruction, StageState& state);
// FROM's words, with the ARGs that stand before it.
Result<std::string> expand_from(const std::string& word, const std::map<std::string, std::string>& globals, char escape);
// Those ARGs: defaults, or what the call gives.
Result<std::map<std::string, std::string>> global_args(const Plan& plan, const std::map<std::string, std::string>& given);

}  // namespace dsec::build
