// The capabilities that a payload process can ever have, in the inner user
// namespace of its sandbox. What Debian's own tools need to install packages,
// switch users and serve ports; nothing that reaches mounts, the network's set-up,
// device nodes, limits or another user's processes.
#pragma once

#include <linux/capability.h>

#include <cstdint>

namespace dsec::protocol {

inline constexpr int kPayloadCapabilities[] = {
    CAP_CHOWN,  CAP_DAC_OVERRIDE, CAP_FOWNER,           CAP_FSETID,     CAP_KILL,    CAP_SETGID,
    CAP_SETUID, CAP_SETPCAP,      CAP_NET_BIND_SERVICE, CAP_SYS_CHROOT, CAP_SETFCAP, CAP_AUDIT_WRITE,
};

inline constexpr std::uint64_t payload_capability_mask() {
  std::uint64_t mask = 0;
  for (int capability : kPayloadCapabilities) mask |= std::uint64_t{1} << capability;
  return mask;
}

// The highest capability number that is tried when the others are dropped;
// PR_CAPBSET_DROP answers EINVAL past the kernel's last.
inline constexpr int kLastCapabilityTried = 63;

}  // namespace dsec::protocol
