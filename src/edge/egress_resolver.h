// Names to addresses, as the host sees them.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "edge/egress_policy.h"
#include "sys/worker_pool.h"

namespace dsec::edge {

// Returns by the deadline. kNotFound: no such name; kDeadlineExceeded,
// kExhausted (too many at once), kUnavailable: ask again later.
class EgressResolver {
 public:
  virtual ~EgressResolver() = default;
  virtual boost::asio::awaitable<Result<std::vector<IpAddress>>> resolve(std::string host, Deadline deadline) = 0;
};

// getaddrinfo(3). Blocks, for as long as the host's resolver takes.
Result<std::vector<IpAddress>> look_up_on_host(const std::string& host);

// look_up_on_host() on threads of its own: a look-up may hang for half a minute,
// and must not take the threads that sandboxes are created on.
class SystemResolver final : public EgressResolver {
 public:
  struct Options {
    std::size_t threads = 4;
    std::size_t queue_limit = 256;
    // An answer is used again for this long; the cache holds at most 1,024 names.
    Duration keep = std::chrono::seconds(5);
  };
  explicit SystemResolver(Options options);
  SystemResolver() : SystemResolver(Options{}) {}
  boost::asio::awaitable<Result<std::vector<IpAddress>>> resolve(std::string host, Deadline deadline) override;

 private:
  struct Answer {
    std::vector<IpAddress> addresses;
    Instant until;
  };
  const Options options_;
  std::map<std::string, Answer> answers_;  // of the event loop's thread
  sys::WorkerPool pool_;
};

}  // namespace dsec::edge
