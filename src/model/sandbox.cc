#include "model/sandbox.h"

#include <array>

namespace dsec::model {

namespace {
struct StateName {
  SandboxState state;
  std::string_view name;
};
constexpr std::array<StateName, 9> kStates = {{
    {SandboxState::kQueued, "queued"},
    {SandboxState::kPlacing, "placing"},
    {SandboxState::kStarting, "starting"},
    {SandboxState::kRunning, "running"},
    {SandboxState::kPausing, "pausing"},
    {SandboxState::kPaused, "paused"},
    {SandboxState::kResuming, "resuming"},
    {SandboxState::kEnding, "ending"},
    {SandboxState::kEnded, "ended"},
}};

struct CauseName {
  EndCause cause;
  std::string_view name;
  bool infra;
};
constexpr std::array<CauseName, 14> kCauses = {{
    {EndCause::kNone, "", false},
    {EndCause::kUser, "user", false},
    {EndCause::kTtl, "ttl", false},
    {EndCause::kIdle, "idle", false},
    {EndCause::kOom, "oom", false},
    {EndCause::kExit, "exit", false},
    {EndCause::kAgentLost, "agent_lost", true},
    {EndCause::kNodeLost, "node_lost", true},
    {EndCause::kStartFailed, "start_failed", true},
    {EndCause::kDrain, "drain", true},
    {EndCause::kPressure, "pressure", true},
    {EndCause::kQuota, "quota", false},
    {EndCause::kEnvDestroyed, "env_destroyed", false},
    {EndCause::kDataFault, "data_fault", true},
}};
}  // namespace

std::string_view to_string(Wake wake) { return wake == Wake::kAny ? "any" : "holder"; }

Result<Wake> parse_wake(std::string_view text) {
  if (text == "any") return Wake::kAny;
  if (text == "holder") return Wake::kHolder;
  return invalid_argument("must be any or holder");
}

std::string_view to_string(SandboxState state) { return kStates[static_cast<std::size_t>(state)].name; }
std::string_view to_string(EndCause cause) { return kCauses[static_cast<std::size_t>(cause)].name; }
bool is_infra(EndCause cause) { return kCauses[static_cast<std::size_t>(cause)].infra; }

Result<SandboxState> parse_sandbox_state(std::string_view text) {
  for (const StateName& entry : kStates)
    if (entry.name == text) return entry.state;
  return invalid_argument("\"" + std::string(text.substr(0, 64)) + "\" is not a sandbox state");
}

Result<EndCause> parse_end_cause(std::string_view text) {
  for (const CauseName& entry : kCauses)
    if (entry.name == text) return entry.cause;
  return invalid_argument("\"" + std::string(text.substr(0, 64)) + "\" is not an end cause");
}

bool may_follow(SandboxState from, SandboxState to) {
  using enum SandboxState;
  // Delete, a lost node and a deadline end a sandbox from every state.
  if (to == kEnding) return from != kEnding && from != kEnded;
  if (to == kEnded) return from != kEnded;
  switch (from) {
    case kQueued:
      return to == kPlacing || to == kStarting;
    case kPlacing:
      return to == kStarting || to == kQueued;
    case kStarting:
      return to == kRunning;
    case kRunning:
      return to == kPausing || to == kResuming;  // at once for a rollback
    case kPausing:
      return to == kPaused || to == kRunning;
    case kPaused:
      return to == kResuming;
    case kResuming:
      return to == kRunning || to == kPaused;
    case kEnding:
    case kEnded:
      return false;
  }
  return false;
}

}  // namespace dsec::model
