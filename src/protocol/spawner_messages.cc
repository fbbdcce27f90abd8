#include "protocol/spawner_messages.h"

#include "protocol/packing.h"

namespace dsec::protocol {

namespace {

constexpr std::size_t kMaxEtcFiles = 16;

Packer request(SpawnerRequestKind kind) {
  Packer p;
  p.u32(kSpawnerProtocol).u8(static_cast<std::uint8_t>(kind));
  return p;
}

Unpacker body(std::string_view bytes) {
  Unpacker u(bytes);
  u.u32();
  u.u8();
  return u;
}

Error malformed(const char* what) { return invalid_argument(std::string("malformed ") + what + " message"); }

}  // namespace

const char* to_string(LaunchStep step) {
  switch (step) {
    case LaunchStep::kSlot: return "slot";
    case LaunchStep::kLimits: return "limits";
    case LaunchStep::kUpper: return "upper";
    case LaunchStep::kLayers: return "layers";
    case LaunchStep::kOverlay: return "overlay";
    case LaunchStep::kRoot: return "root";
    case LaunchStep::kEnter: return "enter";
    case LaunchStep::kActivate: return "activate";
  }
  return "unknown";
}

std::string encode(const LaunchRequest& m) {
  Packer p = request(SpawnerRequestKind::kLaunch);
  p.bytes(m.hostname).u64(m.memory_bytes).u32(m.cpu_millis).u64(m.processes).u8(m.batch);
  p.u8(static_cast<std::uint8_t>(m.upper)).u64(m.upper_bytes).u32(m.layers);
  p.u32(static_cast<std::uint32_t>(m.etc_files.size()));
  for (const auto& [name, text] : m.etc_files) p.bytes(name).bytes(text);
  return p.take();
}

Result<LaunchRequest> decode_launch_request(std::string_view bytes) {
  Unpacker u = body(bytes);
  LaunchRequest m;
  m.hostname = u.bytes();
  m.memory_bytes = u.u64();
  m.cpu_millis = u.u32();
  m.processes = u.u64();
  m.batch = u.u8() != 0;
  m.upper = static_cast<UpperKind>(u.u8());
  m.upper_bytes = u.u64();
  m.layers = u.u32();
  const std::uint32_t files = u.u32();
  if (files > kMaxEtcFiles) return malformed("launch");
  for (std::uint32_t i = 0; i < files && u.ok(); ++i) {
    std::string name = u.bytes();
    m.etc_files[std::move(name)] = u.bytes();
  }
  if (!u.finished() || m.layers == 0 || m.layers > kMaxLaunchLayers ||
      (m.upper != UpperKind::kTmpfs && m.upper != UpperKind::kDirectory))
    return malformed("launch");
  return m;
}

std::string encode(const LaunchReply& m) {
  Packer p;
  p.u32(kSpawnerProtocol).u8(m.launched);
  p.bytes(m.slot).u64(m.generation).u32(m.pid).u64(m.identity).u64(m.oom_kills).u32(m.first_id).bytes(m.upper_handle);
  p.u8(static_cast<std::uint8_t>(m.step)).u32(static_cast<std::uint32_t>(m.error_number)).bytes(m.message);
  for (std::uint32_t nsec : m.step_nsec) p.u32(nsec);
  return p.take();
}

Result<LaunchReply> decode_launch_reply(std::string_view bytes) {
  Unpacker u(bytes);
  LaunchReply m;
  const bool known = u.u32() == kSpawnerProtocol;
  m.launched = u.u8() != 0;
  m.slot = u.bytes();
  m.generation = u.u64();
  m.pid = u.u32();
  m.identity = u.u64();
  m.oom_kills = u.u64();
  m.first_id = u.u32();
  m.upper_handle = u.bytes();
  m.step = static_cast<LaunchStep>(u.u8());
  m.error_number = static_cast<std::int32_t>(u.u32());
  m.message = u.bytes();
  for (std::uint32_t& nsec : m.step_nsec) nsec = u.u32();
  if (!known || !u.finished()) return malformed("launch reply");
  return m;
}

std::string encode(const ReleaseRequest& m) {
  Packer p = request(SpawnerRequestKind::kRelease);
  p.bytes(m.slot).u64(m.generation);
  return p.take();
}

Result<ReleaseRequest> decode_release_request(std::string_view bytes) {
  Unpacker u = body(bytes);
  ReleaseRequest m;
  m.slot = u.bytes();
  m.generation = u.u64();
  if (!u.finished()) return malformed("release");
  return m;
}

std::string encode(const ReleaseReply& m) {
  Packer p;
  p.u32(kSpawnerProtocol).u8(m.released);
  return p.take();
}

Result<ReleaseReply> decode_release_reply(std::string_view bytes) {
  Unpacker u(bytes);
  const bool known = u.u32() == kSpawnerProtocol;
  ReleaseReply m;
  m.released = u.u8() != 0;
  if (!known || !u.finished()) return malformed("release reply");
  return m;
}

std::string encode_status_request() { return request(SpawnerRequestKind::kStatus).take(); }

std::string encode(const StatusReply& m) {
  Packer p;
  p.u32(kSpawnerProtocol).u32(m.pid).u32(m.free_slots).u64(m.prepared).u64(m.recycled);
  p.u32(static_cast<std::uint32_t>(m.used_slots.size()));
  for (const std::string& slot : m.used_slots) p.bytes(slot);
  return p.take();
}

Result<StatusReply> decode_status_reply(std::string_view bytes) {
  Unpacker u(bytes);
  const bool known = u.u32() == kSpawnerProtocol;
  StatusReply m;
  m.pid = u.u32();
  m.free_slots = u.u32();
  m.prepared = u.u64();
  m.recycled = u.u64();
  const std::uint32_t used = u.u32();
  for (std::uint32_t i = 0; i < used && u.ok(); ++i) m.used_slots.push_back(u.bytes());
  if (!known || !u.finished()) return malformed("status reply");
  return m;
}

Result<SpawnerRequestKind> spawner_request_kind(std::string_view bytes) {
  Unpacker u(bytes);
  const std::uint32_t version = u.u32();
  const auto kind = static_cast<SpawnerRequestKind>(u.u8());
  if (!u.ok() || version != kSpawnerProtocol) return invalid_argument("another version of the spawner's protocol");
  switch (kind) {
    case SpawnerRequestKind::kLaunch:
    case SpawnerRequestKind::kRelease:
    case SpawnerRequestKind::kStatus: return kind;
  }
  return malformed("request");
}

}  // namespace dsec::protocol
