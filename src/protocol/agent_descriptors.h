// What aether finds when it starts: descriptors, identity, environment.
//
// aether is PID 1 of the sandbox's pid namespace, executed by execveat from a
// file of mode 0111 owned by host root. It stands in the OUTER user namespace of
// the sandbox as uid and gid kAgentUid, which the INNER user namespace does not
// map; kAgentCapabilities are permitted, effective and ambient. Its mount, pid,
// net, ipc, uts and cgroup namespaces belong to the outer user namespace. Every
// signal has its default action and none is blocked. argv is {"aether"}; the
// environment holds kAgentV1CgroupsEnv and nothing else.
//
// It starts before its sandbox has a root filesystem: its root is the spawner's
// empty one. One message of one byte comes at kAgentListenFd, with two
// descriptors: the listening socket, which takes that number, and the directory
// to enter by fchdir and chroot. Nothing of the root is looked at before. The end
// of that socket means that no sandbox will come of it: aether exits.
//
// A payload process is made in this order, by a child that shares nothing but
// memory with aether (clone3 with CLONE_VM | CLONE_INTO_CGROUP):
//   1. write "0" to each of kV1TasksFds that is open (never a pid: that waits for
//      an RCU grace period);
//   2. setns(kInnerUserNamespaceFd, CLONE_NEWUSER). The filter allows setns with
//      exactly these arguments. It gives all capabilities of the inner namespace
//      and resets bounding set and securebits, so the drop comes after it;
//   3. PR_CAPBSET_DROP of all but kPayloadCapabilities (payload_privileges.h), and
//      capset to that set; no_new_privs if asked;
//   4. setgroups, setresgid, setresuid by raw system calls, to ids of the inner
//      namespace, 0 to 65535; raise oom_score_adj;
//   5. setsid, descriptors, cwd, execve.
// A PTY's slave is made as kAgentUid: chown it to the payload's user.
#pragma once

#include <linux/capability.h>

#include <cstdint>

namespace dsec::protocol {

// 0, 1 and 2 are /dev/null. Those that follow cross aether's own exec, so aether
// makes them close-on-exec first of all.
inline constexpr int kAgentListenFd = 3;         // SOCK_SEQPACKET at first, then the listening SOCK_STREAM socket
inline constexpr int kInnerUserNamespaceFd = 4;  // for setns of a payload's child
// cgroup v1 `tasks` files of the payload, open for writing; absent on a host
// without that v1 controller.
inline constexpr int kV1MemoryTasksFd = 5;
inline constexpr int kV1CpuTasksFd = 6;
inline constexpr int kV1PidsTasksFd = 7;
inline constexpr int kV1TasksFds[] = {kV1MemoryTasksFd, kV1CpuTasksFd, kV1PidsTasksFd};
// The payload's v2 cgroup directory, for what belongs to no operation; an
// operation's own directory comes with its ExecStart.
inline constexpr int kPayloadCgroupFd = 8;
inline constexpr int kFirstFreeAgentFd = 9;

inline constexpr std::uint32_t kAgentUid = 65536;  // in the outer user namespace; its gid too
inline constexpr std::uint32_t kPayloadIds = 65536;

// "DSEC_V1_CGROUPS=1" when 5 to 7 are there, "=0" when not.
inline constexpr char kAgentV1CgroupsEnv[] = "DSEC_V1_CGROUPS";

// SYS_ADMIN is for setns into the inner namespace and nothing else: the filter
// refuses aether the mount family as well.
inline constexpr int kAgentCapabilities[] = {
    CAP_CHOWN,  CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER,     CAP_FSETID,   CAP_KILL,
    CAP_SETGID, CAP_SETUID,       CAP_SETPCAP,         CAP_SYS_CHROOT, CAP_SYS_ADMIN,
};

}  // namespace dsec::protocol
