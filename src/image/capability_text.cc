#include "image/capability_text.h"

#include <array>
#include <cstdint>
#include <cstring>

namespace dsec::image {

namespace {

// By number, as in linux/capability.h.
constexpr std::array<std::string_view, 41> kNames = {
    "chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "linux_immutable", "net_bind_service",
    "net_broadcast", "net_admin", "net_raw", "ipc_lock", "ipc_owner", "sys_module", "sys_rawio", "sys_chroot", "sys_ptrace", "sys_pacct", "sys_admin",
    "sys_boot", "sys_nice", "sys_resource", "sys_time", "sys_tty_config", "mknod", "lease", "audit_write", "audit_control", "setfcap", "mac_override",
    "mac_admin", "syslog", "wake_alarm", "block_suspend", "audit_read", "perfmon", "bpf", "checkpoint_restore",
};

std::uint32_t word_at(std::string_view value, std::size_t at) {
  std::uint32_t word = 0;
  if (at + sizeof word <= value.size()) std::memcpy(&word, value.data() + at, sizeof word);
  return word;
}

std::string names_of(std::uint64_t set) {
  std::string out;
  for (std::size_t bit = 0; bit < 64; bit++) {
    if ((set >> bit & 1) == 0) continue;
    if (!out.empty()) out += ',';
    out += "cap_";
    out += bit < kNames.size() ? std::string(kNames[bit]) : std::to_string(bit);
  }
  return out;
}

}  // namespace

std::string capability_text(std::string_view value) {
  if (value.empty()) return "";
  const bool effective = (word_at(value, 0) & 1) != 0;
  const std::uint64_t permitted = word_at(value, 4) | std::uint64_t{word_at(value, 12)} << 32;
  const std::uint64_t inheritable = word_at(value, 8) | std::uint64_t{word_at(value, 16)} << 32;
  std::string out;
  const auto clause = [&](std::uint64_t set, std::string flags) {
    if (set == 0) return;
    if (!out.empty()) out += ' ';
    out += names_of(set) + (effective ? "=e" : "=") + flags;
  };
  clause(permitted & ~inheritable, "p");
  clause(permitted & inheritable, "ip");
  clause(inheritable & ~permitted, "i");
  return out.empty() ? "=" : out;
}

}  // namespace dsec::image
