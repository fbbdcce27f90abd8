// The client side of a WebSocket, over a Wire that never blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cli/http.h"

namespace dsec::cli {

// Messages out are queued and leave as the server takes them; the owner polls
// fd() for reading always and for writing while pending_bytes() > 0.
class WebSocketClient {
 public:
  explicit WebSocketClient(HttpClient::Upgraded upgraded);

  struct Message {
    bool text = true;
    std::string bytes;
  };
  void send(bool text, std::string_view bytes);
  void close();  // queues the closing frame
  // Writes what the server takes now and reads what is there. kUnavailable when the connection is lost.
  Result<void> pump();
  // The next whole message, if one has arrived. kCancelled once the server has closed.
  Result<std::optional<Message>> next();

  int fd() const { return wire_->fd(); }
  bool readable_without_poll() const { return wire_->buffered(); }
  std::size_t pending_bytes() const { return out_.size(); }

 private:
  void frame(std::uint8_t opcode, std::string_view payload);

  std::unique_ptr<Wire> wire_;
  std::string in_;
  std::string out_;
  std::string partial_;
  bool partial_text_ = true;
  bool closed_ = false;
  std::optional<Error> lost_;
};

}  // namespace dsec::cli
