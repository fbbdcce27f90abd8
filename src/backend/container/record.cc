#include "backend/container/record.h"

#include "protocol/packing.h"

namespace dsec::backend::container {

namespace {
constexpr std::uint32_t kRecordVersion = 2;
}

std::string encode(const Record& r) {
  return protocol::Packer()
      .u32(kRecordVersion)
      .bytes(r.slot)
      .u64(r.generation)
      .u32(r.pid)
      .u64(r.identity)
      .bytes(r.boot_id)
      .bytes(r.socket_name)
      .u64(r.oom_kills)
      .u32(r.first_id)
      .bytes(r.upper_handle)
      .take();
}

Result<Record> decode_record(std::string_view bytes) {
  protocol::Unpacker u(bytes);
  const std::uint32_t version = u.u32();
  if (u.ok() && version > kRecordVersion) return Error(ErrorCode::kUnsupported, "a container record of a newer version");
  Record r;
  r.slot = u.bytes();
  r.generation = u.u64();
  r.pid = u.u32();
  r.identity = u.u64();
  r.boot_id = u.bytes();
  r.socket_name = u.bytes();
  r.oom_kills = u.u64();
  if (version > 1) {
    r.first_id = u.u32();
    r.upper_handle = u.bytes();
  }
  if (!u.finished() || r.socket_name.find('/') != std::string::npos)
    return Error(ErrorCode::kDataFault, "malformed container record");
  return r;
}

}  // namespace dsec::backend::container
