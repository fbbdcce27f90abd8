#include "protocol/keeper_messages.h"

#include "protocol/packing.h"

namespace dsec::protocol {
namespace {

// Reads a list whose length the bytes that are there bound.
std::vector<std::string> read_list(Unpacker& in) {
  std::vector<std::string> out;
  const std::uint32_t count = in.u32();
  for (std::uint32_t i = 0; i < count && in.ok(); i++) out.push_back(in.bytes());
  return out;
}

void write_list(Packer& out, const std::vector<std::string>& list) {
  out.u32(static_cast<std::uint32_t>(list.size()));
  for (const std::string& item : list) out.bytes(item);
}

}  // namespace

std::string encode(const KeeperRequest& request) {
  Packer out;
  out.u8(kKeeperProtocol).u8(static_cast<std::uint8_t>(request.verb)).bytes(request.name);
  write_list(out, request.arguments);
  return out.take();
}

std::string encode(const KeeperReply& reply) {
  Packer out;
  out.u8(kKeeperProtocol).u32(static_cast<std::uint32_t>(reply.error_number)).bytes(reply.message).u8(reply.more);
  write_list(out, reply.names);
  out.u32(reply.pid).u32(reply.descriptors).u32(reply.restarts);
  return out.take();
}

Result<KeeperRequest> decode_keeper_request(std::string_view bytes) {
  Unpacker in(bytes);
  if (in.u8() != kKeeperProtocol) return invalid_argument("a request of another keeper protocol");
  KeeperRequest request;
  request.verb = static_cast<KeeperVerb>(in.u8());
  request.name = in.bytes();
  request.arguments = read_list(in);
  if (!in.finished()) return invalid_argument("a malformed keeper request");
  if (request.name.size() > kMaxKeeperName) return invalid_argument("the name is longer than 200 bytes");
  return request;
}

Result<KeeperReply> decode_keeper_reply(std::string_view bytes) {
  Unpacker in(bytes);
  if (in.u8() != kKeeperProtocol) return invalid_argument("a reply of another keeper protocol");
  KeeperReply reply;
  reply.error_number = static_cast<std::int32_t>(in.u32());
  reply.message = in.bytes();
  reply.more = in.u8() != 0;
  reply.names = read_list(in);
  reply.pid = in.u32();
  reply.descriptors = in.u32();
  reply.restarts = in.u32();
  if (!in.finished()) return invalid_argument("a malformed keeper reply");
  return reply;
}

}  // namespace dsec::protocol
