// A sandbox as everybody sees it: what was asked for, and where it stands.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "model/layer.h"

namespace dsec::model {

enum class SandboxState { kQueued, kPlacing, kStarting, kRunning, kPausing, kPaused, kResuming, kEnding, kEnded };

// Why a sandbox ended. The closed list of the contract.
enum class EndCause {
  kNone,
  kUser,         // delete was called
  kTtl,          // its maximum lifetime passed
  kIdle,         // its idle time passed
  kOom,          // its own memory limit, from the cgroup's own event
  kExit,         // its start command ended
  kAgentLost,    // the channel was lost, and evidence outside the sandbox says that the platform did it
  kNodeLost,
  kStartFailed,
  kDrain,
  kPressure,
  kQuota,
  kEnvDestroyed,  // the channel was lost with no such evidence: trainable
  kDataFault,
};

std::string_view to_string(SandboxState state);
std::string_view to_string(EndCause cause);
Result<SandboxState> parse_sandbox_state(std::string_view text);
Result<EndCause> parse_end_cause(std::string_view text);
// Masked by trainers. True only for causes that rest on evidence from outside the sandbox.
bool is_infra(EndCause cause);

struct Resources {
  double cpu_cores = 1;
  std::int64_t memory_mb = 1024;
  std::int64_t disk_mb = 4096;
  std::int64_t max_processes = 1024;
};

enum class OnTimeout { kStop, kPause };
struct Lifetime {
  std::int64_t idle_seconds = 0;    // 0 = none
  std::int64_t max_seconds = 86400; // 0 = none
  OnTimeout on_timeout = OnTimeout::kStop;
};

enum class NetworkMode { kNone, kProxy, kDevice };
// What may be reached in mode proxy. Everything else is denied.
struct NetworkRule {
  std::string domain;  // "example.org" or "*.example.org"; or
  std::string cidr;    // "10.0.0.0/8"; exactly one of the two
  std::uint16_t port = 0;  // 0 = any
  bool operator==(const NetworkRule&) const = default;
};
struct Network {
  NetworkMode mode = NetworkMode::kNone;
  std::vector<std::string> services;  // names of services that the operator defined
  std::vector<NetworkRule> rules;
  bool operator==(const Network&) const = default;
};

enum class Priority { kLatency, kBatch };

// Refs as the caller wrote them. `image` and `environment.base` exclude one another.
struct Environment {
  std::string base;
  std::string workspace;
  std::vector<std::string> toolkits;
  std::vector<std::string> diffs;  // packed from sandboxes, lowest first, above all the others
};

struct StartCommand {
  std::vector<std::string> argv;
  std::map<std::string, std::string> env;
  std::uint16_t ready_port = 0;       // ready when this port accepts; or
  std::string ready_command;          // when this shell command succeeds; or at once
};

struct SandboxSpec {
  std::string name;  // unique among the project's live sandboxes; may be empty
  std::string backend = "container";
  std::string architecture;  // "" = the node's
  std::string image;  // a ref: a base that may carry more layers
  Environment environment;
  std::string snapshot;  // id of a checkpoint or name of a snapshot, in place of image and environment
  Resources resources;
  Lifetime lifetime;
  Network network;
  std::optional<StartCommand> start;
  std::map<std::string, std::string> env;
  std::map<std::string, std::string> labels;
  std::string user;      // default user of exec; "" = the image's
  std::string hostname;  // "" = from the id
  Priority priority = Priority::kLatency;
  bool no_new_privs = false;
};

// What the apiserver resolved refs to, before the edge sees the spec.
struct ResolvedLayers {
  std::vector<LayerRecord> layers;  // lowest first: base < workspace < toolkits < diffs
  ImageConfig config;
};

// Who brings a paused sandbox back: whatever needs it, or only who holds its lease.
enum class Wake { kAny, kHolder };
std::string_view to_string(Wake wake);
Result<Wake> parse_wake(std::string_view text);

// A sandbox that stands still. Its idle time and its lifetime stand still with it.
struct Pause {
  std::int64_t at_ms = 0;
  std::string reason;                // "user", "idle", "ttl", or the caller's own words
  Wake wake = Wake::kAny;
  std::uint64_t fence = 0;           // kHolder: who resumes it has this fence or a higher one
  std::int64_t left_ms = -1;         // of its lifetime; -1 = it has no end
  std::int64_t reclaimed_bytes = -1; // of its memory, given back; -1 = not known yet
  std::int64_t swapped_bytes = -1;
};

struct Sandbox {
  std::string id;
  std::string project;
  std::string node;
  SandboxSpec spec;
  std::vector<std::string> layer_digests;  // lowest first
  SandboxState state = SandboxState::kQueued;
  EndCause cause = EndCause::kNone;
  std::string end_detail;  // for people: "memory limit 64 MiB"
  std::int64_t created_at_ms = 0;
  std::int64_t started_at_ms = 0;  // 0 = not yet
  std::int64_t ended_at_ms = 0;
  std::int64_t expires_at_ms = 0;  // 0 = never, or paused
  std::int64_t rolled_back_at_ms = 0;  // when its files last went back to a checkpoint; 0 = never
  std::optional<Pause> pause;      // from the pause to the resume, both included
  std::uint64_t fence = 0;         // the highest that a request carried
  // When a process of it first met missing, wrong or very late data of a layer. From
  // then on no failure of it is its own: trainers mask it.
  std::int64_t data_fault_at_ms = 0;  // 0 = never
  std::string data_fault;             // for people
  bool infra() const { return is_infra(cause) || (data_fault_at_ms != 0 && cause != EndCause::kNone && cause != EndCause::kUser); }
};

// The arrows of the state machine: what stands in docs/architecture.md.
bool may_follow(SandboxState from, SandboxState to);

// Checks names, labels, limits, hostnames; the error names the field.
Result<void> validate(const SandboxSpec& spec);

}  // namespace dsec::model
