// Programs of a node <-> dsec-keeper: one request, then its replies, on a
// SOCK_SEQPACKET connection at <data>/run/keeper.sock.
//
// Both sides come from one build or from neighbouring ones; the first byte of
// each request is the protocol's version, and a keeper refuses one that it does
// not know. Put carries one descriptor; each reply to Get carries as many as it
// has names, and the last one has more = false.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace dsec::protocol {

inline constexpr std::uint8_t kKeeperProtocol = 1;
inline constexpr std::size_t kMaxKeeperName = 200;
inline constexpr std::size_t kMaxKeeperMessage = 64 << 10;
inline constexpr std::size_t kKeeperBatch = 100;  // descriptors a message

enum class KeeperVerb : std::uint8_t {
  kPut = 1,  // name + descriptor
  kGet,      // name = prefix
  kDrop,     // name
  kStart,    // name + arguments: run a program, and run it again when it ends
  kStatus,
  kStop,     // end the programs, forget everything, exit
};

struct KeeperRequest {
  KeeperVerb verb = KeeperVerb::kStatus;
  std::string name;
  std::vector<std::string> arguments;  // kStart: absolute path first
};

struct KeeperReply {
  std::int32_t error_number = 0;
  std::string message;
  bool more = false;
  std::vector<std::string> names;    // kGet: of the descriptors
  std::uint32_t pid = 0;             // kStatus: the keeper's; kStart: the program's
  std::uint32_t descriptors = 0;     // kStatus
  std::uint32_t restarts = 0;        // kStatus: of programs, since the keeper started
};

std::string encode(const KeeperRequest& request);
std::string encode(const KeeperReply& reply);
Result<KeeperRequest> decode_keeper_request(std::string_view bytes);
Result<KeeperReply> decode_keeper_reply(std::string_view bytes);

}  // namespace dsec::protocol
