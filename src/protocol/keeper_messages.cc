#include "protocol/keeper_messages.h"

#include "protocol/packing.h"

namespace dsec::protocol {

std::string encode(const KeeperRequest& m) {
  return Packer().u32(kKeeperProtocol).u8(static_cast<std::uint8_t>(m.kind)).bytes(m.name).take();
}

Result<KeeperRequest> decode_keeper_request(std::string_view bytes) {
  Unpacker u(bytes);
  const bool known = u.u32() == kKeeperProtocol;
  KeeperRequest m;
  const std::uint8_t kind = u.u8();
  m.kind = static_cast<KeeperRequestKind>(kind);
  m.name = u.bytes();
  if (!known || !u.finished() || kind < 1 || kind > static_cast<std::uint8_t>(KeeperRequestKind::kStop) ||
      m.name.size() > kMaxKeptName)
    return invalid_argument("malformed keeper request");
  return m;
}

std::string encode(const KeeperReply& m) {
  Packer p;
  p.u32(kKeeperProtocol).u32(static_cast<std::uint32_t>(m.error_number)).bytes(m.message).u8(m.more);
  p.u32(m.kept).u32(m.pid).u32(m.spawner_pid).u32(m.spawner_starts);
  p.u32(static_cast<std::uint32_t>(m.names.size()));
  for (const std::string& name : m.names) p.bytes(name);
  return p.take();
}

Result<KeeperReply> decode_keeper_reply(std::string_view bytes) {
  Unpacker u(bytes);
  const bool known = u.u32() == kKeeperProtocol;
  KeeperReply m;
  m.error_number = static_cast<std::int32_t>(u.u32());
  m.message = u.bytes();
  m.more = u.u8() != 0;
  m.kept = u.u32();
  m.pid = u.u32();
  m.spawner_pid = u.u32();
  m.spawner_starts = u.u32();
  const std::uint32_t names = u.u32();
  for (std::uint32_t i = 0; i < names && u.ok(); ++i) m.names.push_back(u.bytes());
  if (!known || !u.finished()) return invalid_argument("malformed keeper reply");
  return m;
}

}  // namespace dsec::protocol
