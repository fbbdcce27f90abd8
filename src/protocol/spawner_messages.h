// backend <-> dsec-spawner: one request and one reply at a time on a
// SOCK_SEQPACKET connection at <data>/run/spawner.sock.
//
// Both programs come from one build; the version says so, and another is refused.
// Launch carries descriptors in this order: the agent's listening socket, one
// detached mount a layer (lowest first), then the upper directory if the request
// names one. Its reply carries the pidfd of aether.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace dsec::protocol {

inline constexpr std::uint32_t kSpawnerProtocol = 3;
inline constexpr std::size_t kMaxLaunchLayers = 64;
inline constexpr std::size_t kMaxSpawnerMessage = 192 << 10;

enum class SpawnerRequestKind : std::uint8_t { kLaunch = 1, kRelease, kStatus };

// The steps of a launch, in order; a failed one is named in the reply, and the
// times of all are there for the benchmark.
enum class LaunchStep : std::uint8_t {
  kSlot,      // a slot with its skeleton taken from the pool
  kLimits,    // cgroup limits, where they differ from the slot's last
  kUpper,     // the writable layer
  kLayers,    // idmapped clones
  kOverlay,
  kRoot,      // /proc, /dev and /sys attached to the root filesystem
  kEnter,     // the sandbox's mount namespace entered, root attached, hostname set
  kActivate,  // listening socket and root handed to aether
};
inline constexpr std::size_t kLaunchSteps = static_cast<std::size_t>(LaunchStep::kActivate) + 1;
const char* to_string(LaunchStep step);

enum class UpperKind : std::uint8_t { kTmpfs = 1, kDirectory };

struct LaunchRequest {
  std::string hostname;
  std::uint64_t memory_bytes = 0;
  std::uint32_t cpu_millis = 0;
  std::uint64_t processes = 0;
  bool batch = false;
  UpperKind upper = UpperKind::kTmpfs;
  std::uint64_t upper_bytes = 0;
  std::uint32_t layers = 0;
  // Written below /etc of the upper before anything runs: "hosts", …
  std::map<std::string, std::string> etc_files;
};
struct LaunchReply {
  bool launched = false;
  // launched
  std::string slot;
  std::uint64_t generation = 0;  // tells this use of the slot from the next
  std::uint32_t pid = 0;         // in the host's pid namespace
  std::uint64_t identity = 0;    // sys::process_identity
  std::uint64_t oom_kills = 0;   // counted in the slot before
  std::uint32_t first_id = 0;    // the host's number of the sandbox's id 0
  std::string upper_handle;      // sys::file_handle of a kTmpfs upper; on the file system of its /dev/shm
  // not launched: nothing ran and nothing is left
  LaunchStep step = LaunchStep::kSlot;
  std::int32_t error_number = 0;
  std::string message;
  std::array<std::uint32_t, kLaunchSteps> step_nsec{};
};

// The sandbox of the slot is over; the slot may be used again. With generation
// 0, or one that is not the slot's, an empty slot is removed and one in use is
// left alone. kills nothing.
struct ReleaseRequest {
  std::string slot;
  std::uint64_t generation = 0;
};
struct ReleaseReply {
  bool released = false;  // false: a process is left in it
};

struct StatusReply {
  std::uint32_t pid = 0;
  std::uint32_t free_slots = 0;
  std::vector<std::string> used_slots;
  std::uint64_t prepared = 0;  // slots made since the start
  std::uint64_t recycled = 0;  // slots used again
};

std::string encode(const LaunchRequest& m);
std::string encode(const LaunchReply& m);
std::string encode(const ReleaseRequest& m);
std::string encode(const ReleaseReply& m);
std::string encode(const StatusReply& m);
std::string encode_status_request();

// The kind of a request; kInvalidArgument for another version or kind.
Result<SpawnerRequestKind> spawner_request_kind(std::string_view bytes);
Result<LaunchRequest> decode_launch_request(std::string_view bytes);
Result<LaunchReply> decode_launch_reply(std::string_view bytes);
Result<ReleaseRequest> decode_release_request(std::string_view bytes);
Result<ReleaseReply> decode_release_reply(std::string_view bytes);
Result<StatusReply> decode_status_reply(std::string_view bytes);

}  // namespace dsec::protocol
