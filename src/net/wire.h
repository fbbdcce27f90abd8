// Wire: one TCP connection to the server, with TLS for https addresses.
//
// The descriptor never blocks; the waiting calls poll with a deadline, the
// try_ calls come back at once. Used by one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "sys/fd.h"

namespace dsec::net {

// "http://127.0.0.1:7780/prefix", taken apart. Only http and https.
struct ServerAddress {
  bool tls = false;
  std::string host;  // without brackets
  std::string port;
  std::string prefix;  // of every path, without a slash at the end
  std::string authorities = {};  // PEM file of those that may vouch for it, besides the system's; "" = none
  std::string authority() const;  // for the Host header
};
Result<ServerAddress> parse_server_address(std::string_view url);

class Wire {
 public:
  // Tries every address of the name. With TLS the certificate must be valid for
  // the name, by the system's authorities or those in SSL_CERT_FILE, or the address's own.
  static Result<std::unique_ptr<Wire>> connect(const ServerAddress& address, Deadline deadline);
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  // Bytes read or taken; 0 = would block. kUnavailable when the server has closed.
  Result<std::size_t> try_read(char* out, std::size_t limit);
  Result<std::size_t> try_write(std::string_view bytes);
  // At least one byte, by the deadline.
  Result<std::size_t> read_some(char* out, std::size_t limit, Deadline deadline);
  Result<void> write_all(std::string_view bytes, Deadline deadline);
  // Until it can be read, or written when that is wanted too; at once when buffered().
  Result<void> wait(bool to_write, Deadline deadline);
  // True when the server has closed, or has said something that nobody asked for.
  bool stale();
  // To be polled for reading, when buffered() is false.
  int fd() const { return fd_.get(); }
  bool buffered() const;

 private:
  struct Tls;
  Wire(sys::Fd fd, std::unique_ptr<Tls> tls);
  Result<void> poll_for(short events, Deadline deadline);
  Result<std::size_t> tls_outcome(int returned, short* wanted, const char* doing);

  sys::Fd fd_;
  std::unique_ptr<Tls> tls_;
  // What the last try of each would have waited for; TLS may read in order to write.
  short read_wants_;
  short write_wants_;
};

}  // namespace dsec::net
