// The system call filter of a sandbox, in two programs that the kernel joins.
//
// broad_filter: default deny. A number that it does not know answers ENOSYS, a
// foreign ABI (i386, x32) kills the process. It still allows what the spawner
// itself needs to make a sandbox, so each spawner thread carries it and every
// sandbox inherits it: its load and JIT (about 0.1 ms) are paid once a thread.
//
// narrow_filter: takes away just that: the mount family, and setns save for
// aether's own entry into the inner user namespace. A dozen instructions, loaded
// by each init right before it executes aether. The payload inherits both.
//
// clone3 stays allowed: its flags are behind a pointer, and aether needs
// CLONE_INTO_CGROUP. Namespaces are closed to the payload by the inner user
// namespace's own limits of zero and by the missing CAP_SYS_ADMIN.
#pragma once

#include <linux/filter.h>

#include <vector>

#include "base/result.h"

namespace dsec::spawner {

std::vector<sock_filter> broad_filter();
std::vector<sock_filter> narrow_filter();

// For the calling thread, for ever. Needs CAP_SYS_ADMIN in its user namespace.
Result<void> load_filter(const std::vector<sock_filter>& program);

}  // namespace dsec::spawner
