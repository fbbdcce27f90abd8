// Between aether and the short-lived process that serves one file request: a
// SOCK_SEQPACKET pair. A message is one letter and its content:
//   R  a FileReply (worker to aether)      D  data (both ways)
//   E  no more data (both ways)
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "protocol/agent_messages.h"

namespace dsec::agent {

inline constexpr char kWorkerReply = 'R';
inline constexpr char kWorkerData = 'D';
inline constexpr char kWorkerEnd = 'E';

// The worker's end, blocking. When aether is gone or has cancelled, the process
// ends at the next call.
class WorkerChannel {
 public:
  WorkerChannel(int socket, std::uint64_t request_id) : socket_(socket), request_id_(request_id) {}

  void reply(protocol::FileReply reply);
  // error_number 0 is success.
  void finish(int error_number, std::string message = {});
  void send_data(std::string_view bytes);  // any size
  void end_data();
  // "" at the end.
  std::string receive_data();

 private:
  void send_message(char kind, std::string_view content);

  int socket_;
  std::uint64_t request_id_;
  bool ended_ = false;
};

}  // namespace dsec::agent
