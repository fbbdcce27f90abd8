// What a file request does, inside the worker process: it stands in the sandbox
// with the rights of the request's user, may block, and may be killed at any time.
#pragma once

#include <sys/stat.h>

#include <string>

#include "agent/accounts.h"
#include "agent/worker_channel.h"
#include "base/result.h"
#include "protocol/agent_messages.h"
#include "sys/fd.h"

namespace dsec::agent {

// Answers with a FileReply of more = false, always.
void serve_file_request(const protocol::FileRequest& request, const Account& account, WorkerChannel& channel);

// The parts, one a file. Each sends what comes before the last reply; the result
// is the last reply, or its error.
Result<protocol::FileReply> serve_stat(const protocol::FileRequest& request);
Result<protocol::FileReply> serve_list(const protocol::FileRequest& request, WorkerChannel& channel);
Result<protocol::FileReply> serve_read(const protocol::FileRequest& request, WorkerChannel& channel);
Result<protocol::FileReply> serve_write(const protocol::FileRequest& request, WorkerChannel& channel);
Result<protocol::FileReply> serve_make_directory(const protocol::FileRequest& request);
Result<protocol::FileReply> serve_move(const protocol::FileRequest& request);
Result<protocol::FileReply> serve_remove(const protocol::FileRequest& request);
Result<protocol::FileReply> serve_tar_out(const protocol::FileRequest& request, WorkerChannel& channel);
Result<protocol::FileReply> serve_tar_in(const protocol::FileRequest& request, WorkerChannel& channel);
Result<protocol::FileReply> serve_watch(const protocol::FileRequest& request, WorkerChannel& channel);

// A directory and a name in it; the name is "" for "/" itself and never "." or "..".
struct Location {
  sys::Fd directory;
  std::string name;
};
Result<Location> locate(const std::string& path, bool make_parents);
// Like `mkdir -p`: an existing directory is well.
Result<void> make_directories_for_user(const std::string& path, mode_t mode);

// A name for what is not whole yet, beside what it will replace.
std::string temporary_name();

// open(2) that follows no link of /proc/<pid>/fd and the like.
Result<sys::Fd> open_path(const std::string& path, int flags);
// A regular file, opened without blocking and without taking a terminal.
// EISDIR, or EINVAL for devices, FIFOs and sockets.
Result<sys::Fd> open_regular(const std::string& path, int flags);

protocol::FileInfo file_info(std::string path, const struct stat& status, const IdNames& names);
// Below `directory`; a symlink's target is read.
Result<protocol::FileInfo> file_info_at(int directory, const std::string& name, std::string path, const IdNames& names);

}  // namespace dsec::agent
