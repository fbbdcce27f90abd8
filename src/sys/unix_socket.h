// Unix sockets that carry descriptors.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "sys/fd.h"

namespace dsec::sys {

struct SocketMessage {
  std::string bytes;
  std::vector<Fd> fds;
};

struct SocketPair {
  Fd first;
  Fd second;
};

// type: SOCK_STREAM or SOCK_SEQPACKET, both ends close-on-exec.
Result<SocketPair> socket_pair(int type);
// Binds and listens at `path` (removed first), mode 0600. Longer than 107 bytes is refused.
Result<Fd> listen_unix(const std::string& path, int type, int backlog = 64);
Result<Fd> connect_unix(const std::string& path, int type);
Result<Fd> accept_unix(int listener);

// One message of a SOCK_SEQPACKET socket (or one sendmsg of a stream), with at most 200 descriptors.
Result<void> send_message(int socket, std::string_view bytes, const std::vector<int>& fds = {});
// Waits until the deadline. kUnavailable at end of file. At most `limit` bytes; a longer message is an error.
Result<SocketMessage> receive_message(int socket, Deadline deadline, std::size_t limit = 1 << 18);
Result<void> wait_readable(int fd, Deadline deadline);

}  // namespace dsec::sys
