// The records of the edge's log. Bodies are protobuf messages (fields below,
// additions get new numbers), so that an older record stays readable.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/sandbox.h"

namespace dsec::edge {

enum class WalType : std::uint8_t {
  kEdgeStart = 1,
  kAccepted,    // before anything of the sandbox is made
  kLaunched,    // the backend's record: from here on it can be adopted
  kStarted,     // running; the create call is answered after it
  kTransition,  // to another state; to kEnding with its cause
  kPatched,     // the whole spec, and the new expiry
  kOpAccepted,  // before the agent is told
  kOpFinished,
  kEnded,
  kForgotten,   // nothing of it is kept any more
  kDataFault,   // the first one that it met
  kPaused,      // before the freeze, and again when what it says has changed
  kResumed,     // before the thaw
  kFenced,      // the highest fence that a request about it carried
  kHeld,        // a bulk pause: who matches it and comes later waits; its id is the hold's own
  kHoldEnded,
  kRolledBack = 32,  // before the container goes whose place a new one over other layers takes
  kEvent,            // of a sandbox's story; what a new start tells of before it
};

struct EdgeStartRecord {
  std::uint64_t epoch = 0;
  std::string boot_id;
  std::int64_t at_ms = 0;
};

struct AcceptedRecord {
  std::string id;
  std::string project;
  model::SandboxSpec spec;
  std::vector<std::string> layer_digests;
  model::ImageConfig config;
  std::string idempotency_key;
  std::string fingerprint;  // of the spec, for the key
  std::string secret;       // of the agent channel
  std::int64_t created_at_ms = 0;
};

struct LaunchedRecord {
  std::string id;
  std::string backend_record;
  std::string upper_record;
};

struct StartedRecord {
  std::string id;
  std::int64_t at_ms = 0;
  std::int64_t expires_at_ms = 0;
};

struct TransitionRecord {
  std::string id;
  model::SandboxState state = model::SandboxState::kEnding;
  model::EndCause cause = model::EndCause::kNone;
  std::string detail;
};

struct PatchedRecord {
  std::string id;
  model::SandboxSpec spec;
  std::int64_t expires_at_ms = 0;
  std::int64_t left_ms = -1;  // while it is paused: of its lifetime, as in model::Pause
};

struct OpAcceptedRecord {
  std::string id;
  std::string op_id;
  std::string key;
  std::string fingerprint;
  std::string request;  // the JSON body of the call, from which it can be started again
  std::int64_t at_ms = 0;
  bool restartable = true;  // false: the request is not whole (a large stdin)
  bool start_command = false;
  std::string processes;  // record of the backend's operation; "" = as made for this op_id
};

struct OpFinishedRecord {
  std::string id;
  std::string op_id;
  std::uint8_t status = 0;  // ExecStatus
  std::int32_t exit_code = 0;
  std::int32_t signal = 0;
  std::string error;
  std::uint64_t duration_usec = 0;
  std::uint64_t frozen_usec = 0;
  std::uint64_t cpu_usec = 0;
  std::uint64_t stalled_usec = 0;
  std::uint64_t memory_peak_bytes = 0;
  std::uint64_t oom_kills = 0;
  bool shell_modified = false;
  bool infra = false;
  // Per stream, stdout first: bytes when it finished, and the bytes themselves
  // from `tail_offset` on where the spool does not hold them.
  struct Stream {
    std::uint64_t total = 0;
    std::uint64_t stored = 0;
    std::uint64_t tail_offset = 0;
    std::string tail;
    bool ended = false;  // no more can come
  };
  Stream streams[2];
  std::int64_t started_at_ms = 0;
  std::int64_t finished_at_ms = 0;
};

struct EndedRecord {
  std::string id;
  model::EndCause cause = model::EndCause::kNone;
  std::string detail;
  std::int64_t at_ms = 0;
};

struct ForgottenRecord {
  std::string id;
  bool erase = false;  // on request: of the history too
};

struct DataFaultRecord {
  std::string id;
  std::int64_t at_ms = 0;
  std::string detail;
};

struct EventRecord {
  std::string id;
  std::uint64_t sequence = 0;
  std::int64_t at_ms = 0;
  std::string type;
  std::string detail;
};

struct RolledBackRecord {
  std::string id;
  std::string checkpoint;
  std::vector<std::string> layer_digests;  // from now on
  std::int64_t at_ms = 0;
};

struct PausedRecord {
  std::string id;
  model::Pause pause;
};

struct ResumedRecord {
  std::string id;
  std::int64_t at_ms = 0;
  std::int64_t expires_at_ms = 0;
};

struct FencedRecord {
  std::string id;
  std::uint64_t fence = 0;
};

// What a bulk pause said, for who comes after it.
struct HeldRecord {
  std::string id;  // of the project and the selector: one for both
  std::string project;
  std::string selector;  // "" = all of the project
  std::string reason;
  model::Wake wake = model::Wake::kAny;
  std::uint64_t fence = 0;
  std::int64_t at_ms = 0;
};

struct HoldEndedRecord {
  std::string id;
};

std::string encode(const EdgeStartRecord& r);
std::string encode(const AcceptedRecord& r);
std::string encode(const LaunchedRecord& r);
std::string encode(const StartedRecord& r);
std::string encode(const TransitionRecord& r);
std::string encode(const PatchedRecord& r);
std::string encode(const OpAcceptedRecord& r);
std::string encode(const OpFinishedRecord& r);
std::string encode(const EndedRecord& r);
std::string encode(const ForgottenRecord& r);
std::string encode(const DataFaultRecord& r);
std::string encode(const EventRecord& r);
std::string encode(const RolledBackRecord& r);
std::string encode(const PausedRecord& r);
std::string encode(const ResumedRecord& r);
std::string encode(const FencedRecord& r);
std::string encode(const HeldRecord& r);
std::string encode(const HoldEndedRecord& r);

// kDataFault for a body that is not such a record.
template <typename Record>
Result<Record> decode_record(std::string_view body);

// Every record but kEdgeStart names its sandbox, or its hold, in field 1.
Result<std::string> sandbox_of(std::string_view body);

}  // namespace dsec::edge
