// Devices, opened by what they are: a path of the sandbox proves nothing.
#pragma once

#include <sys/types.h>

#include "base/result.h"
#include "sys/fd.h"

namespace dsec::agent {

// /dev/null, proven by its device number, close-on-exec.
Result<sys::Fd> open_null_device();

struct TerminalPair {
  sys::Fd master;  // non-blocking
  sys::Fd slave;
};
// A new terminal of the sandbox's own devpts, whose slave belongs to `owner`.
Result<TerminalPair> open_terminal(uid_t owner, unsigned short rows, unsigned short columns);

// The root of a real procfs, for openat.
Result<sys::Fd> open_proc();

}  // namespace dsec::agent
