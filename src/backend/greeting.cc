#include "backend/greeting.h"

#include <sys/socket.h>

#include "sys/unix_socket.h"

namespace dsec::backend {

namespace {
constexpr std::size_t kMostBytes = 4 << 10;
}

Result<sys::Fd> connect_and_greet(const std::string& socket_path, const std::string& greeting) {
  if (greeting.size() > kMostBytes) return invalid_argument("a greeting is at most 4 KiB");
  DSEC_ASSIGN(sys::Fd stream, sys::connect_unix(socket_path, SOCK_STREAM));
  DSEC_TRY(sys::send_message(stream.get(), greeting));
  return stream;
}

}  // namespace dsec::backend
