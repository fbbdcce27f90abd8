// The server's side of a WebSocket over any stream socket, after its HTTP handshake.
//
// Internal to net.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>

#include "net/stream_socket.h"
#include "net/websocket_frame.h"

namespace dsec::net {

class StreamWebSocket final : public WebSocket {
 public:
  // `already_read` was read behind the handshake.
  StreamWebSocket(Socket socket, std::string already_read);

  asio::awaitable<Result<Message>> read() override;
  asio::awaitable<Result<void>> write(bool text, std::string_view bytes) override;
  asio::awaitable<void> close(std::uint16_t code, std::string_view reason) override;
  void abort();

 private:
  static constexpr std::size_t kMaxMessage = 1 << 20;

  asio::awaitable<Result<void>> send(WebSocketOpcode opcode, std::string_view bytes);
  // Answers what the peer did wrong, then gives the error of read().
  asio::awaitable<Error> fail(std::uint16_t code, std::string_view reason);
  asio::awaitable<Result<void>> need(std::size_t bytes);

  Socket socket_;
  std::string buffer_;  // read and not yet used: at most a message and what came with it
  asio::steady_timer free_;  // cancelled when a writer is done
  bool writing_ = false;
  bool reading_ = false;
  bool close_sent_ = false;
  bool broken_ = false;
};

}  // namespace dsec::net
