// The client's side of a WebSocket, over a Wire that never blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "net/wire.h"

namespace dsec::net {

enum class WebSocketOpcode : std::uint8_t;

// Messages out are queued and leave as the server takes them; the owner polls
// fd() for reading always and for writing while pending_bytes() > 0.
class WebSocketClient {
 public:
  // After the handshake; `already_read` came behind it.
  WebSocketClient(std::unique_ptr<Wire> wire, std::string already_read);

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
  // The same, by the deadline; pumps meanwhile.
  Result<Message> wait(Deadline deadline);

  int fd() const { return wire_->fd(); }
  bool readable_without_poll() const { return wire_->buffered(); }
  std::size_t pending_bytes() const { return out_.size(); }

 private:
  void frame(WebSocketOpcode opcode, std::string_view payload);

  std::unique_ptr<Wire> wire_;
  std::string in_;
  std::string out_;
  Message partial_;
  bool started_ = false;  // partial_ has its first frame
  bool closed_ = false;
  std::optional<Error> lost_;
};

}  // namespace dsec::net
