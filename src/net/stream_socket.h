// One stream socket, whatever its family: what server, client and proxy share.
//
// Internal to net: pulls in Asio's sockets.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <array>
#include <span>
#include <string_view>

#include "net/exchange.h"

namespace dsec::net {

using Socket = asio::generic::stream_protocol::socket;

// Takes over a connected stream descriptor, TCP or unix.
Result<Socket> adopt_socket(const asio::any_io_executor& executor, sys::Fd fd);
void set_no_delay(int fd);
void set_keep_alive(int fd);

// Writes every part in order; one system call when the kernel's buffer has room.
// kCancelled when the peer is gone.
asio::awaitable<Result<void>> write_parts(Socket& socket, std::array<std::string_view, 3> parts);
inline asio::awaitable<Result<void>> write_all(Socket& socket, std::string_view bytes) { return write_parts(socket, {bytes, {}, {}}); }
// 0 at the peer's end of file.
asio::awaitable<Result<std::size_t>> read_available(Socket& socket, std::span<char> buffer);

// Ends our direction, then reads and drops what the peer still sends, so that it
// gets our last answer instead of a reset. Bounded in bytes and time.
asio::awaitable<void> close_lingering(Socket& socket);

}  // namespace dsec::net
