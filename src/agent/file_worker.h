// The process that serves one file request.
//
// A copy of aether (its memory is not shared), in the payload's cgroups, so that
// what it allocates and caches is the payload's; with the file rights of the
// request's user, but with aether's own user id, so that no process of that user
// can signal or trace it.
#pragma once

#include <functional>

#include "agent/payload_child.h"
#include "base/result.h"
#include "protocol/agent_messages.h"
#include "sys/fd.h"

namespace dsec::agent {

struct FileWorker {
  sys::Fd pidfd;
  sys::Fd socket;  // non-blocking; worker_channel.h
};

// `forget_secrets` runs first in the child. The caller reaps the process.
Result<FileWorker> start_file_worker(const protocol::FileRequest& request, const Standing& standing, const std::function<void()>& forget_secrets);

}  // namespace dsec::agent
