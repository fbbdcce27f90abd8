// Clients <-> dsec-keeper, on a SOCK_SEQPACKET connection at
// <data>/run/keeper.sock: one request, then its replies.
//
// Put carries one descriptor. Get answers with any number of kDescriptors
// replies, each with as many descriptors as names, and more = false in the last.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace dsec::protocol {

inline constexpr std::uint32_t kKeeperProtocol = 1;
inline constexpr std::size_t kMaxKeeperMessage = 64 << 10;
inline constexpr std::size_t kMaxKeptName = 200;
inline constexpr std::size_t kMaxKept = 8192;        // descriptors in all
inline constexpr std::size_t kDescriptorsPerReply = 64;
// While the keeper has a descriptor of this name, dsec-stored runs and serves it.
// The first one that is put stays until it is dropped.
inline constexpr std::string_view kStoredChannel = "stored/channel";

enum class KeeperRequestKind : std::uint8_t { kPut = 1, kGet, kDrop, kStatus, kStop };

struct KeeperRequest {
  KeeperRequestKind kind = KeeperRequestKind::kStatus;
  std::string name;  // kPut, kDrop; a prefix for kGet
};

struct KeeperReply {
  std::int32_t error_number = 0;
  std::string message;             // of an error
  std::vector<std::string> names;  // kGet
  bool more = false;               // kGet
  std::uint32_t kept = 0;          // kStatus
  std::uint32_t pid = 0;           // kStatus: the keeper's
  std::uint32_t spawner_pid = 0;   // kStatus; 0 while none runs
  std::uint32_t spawner_starts = 0;
};

std::string encode(const KeeperRequest& m);
std::string encode(const KeeperReply& m);
Result<KeeperRequest> decode_keeper_request(std::string_view bytes);
Result<KeeperReply> decode_keeper_reply(std::string_view bytes);

}  // namespace dsec::protocol
