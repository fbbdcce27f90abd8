#include "edge/egress_resolver.h"

#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstring>
#include <memory>
#include <optional>

namespace dsec::edge {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kMaxAnswers = 1024;
constexpr std::size_t kMaxAddresses = 32;

// What the thread and the waiting coroutine share; the coroutine may have gone
// at its deadline when the answer comes.
struct Pending {
  explicit Pending(const asio::any_io_executor& executor) : wake(executor) {}
  asio::steady_timer wake;
  std::optional<Result<std::vector<IpAddress>>> answer;
};

}  // namespace

Result<std::vector<IpAddress>> look_up_on_host(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int code = getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (code == EAI_NONAME || code == EAI_NODATA) return Error(ErrorCode::kNotFound, "no such host: " + host);
  if (code != 0) return Error(ErrorCode::kUnavailable, "look up " + host + ": " + gai_strerror(code));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(list, &freeaddrinfo);
  std::vector<IpAddress> out;
  for (const addrinfo* one = list; one != nullptr && out.size() < kMaxAddresses; one = one->ai_next) {
    IpAddress address;
    if (one->ai_family == AF_INET) {
      address.bytes[10] = address.bytes[11] = 0xff;
      std::memcpy(address.bytes.data() + 12, &reinterpret_cast<const sockaddr_in*>(one->ai_addr)->sin_addr, 4);
    } else if (one->ai_family == AF_INET6) {
      std::memcpy(address.bytes.data(), &reinterpret_cast<const sockaddr_in6*>(one->ai_addr)->sin6_addr, 16);
    } else {
      continue;
    }
    if (std::ranges::find(out, address) == out.end()) out.push_back(address);
  }
  return out;
}

SystemResolver::SystemResolver(Options options)
    : options_(options), pool_({.name = "resolve", .threads = options.threads, .queue_limit = options.queue_limit}) {}

asio::awaitable<Result<std::vector<IpAddress>>> SystemResolver::resolve(std::string host, Deadline deadline) {
  const Instant now = std::chrono::steady_clock::now();
  if (const auto known = answers_.find(host); known != answers_.end()) {
    if (known->second.until > now) co_return known->second.addresses;
    answers_.erase(known);
  }
  const auto executor = co_await asio::this_coro::executor;
  auto pending = std::make_shared<Pending>(executor);
  pending->wake.expires_at(deadline.when());
  DSEC_CO_TRY(pool_.submit([pending, host, executor] {
    asio::post(executor, [pending, answer = look_up_on_host(host)]() mutable {
      pending->answer = std::move(answer);
      pending->wake.cancel();
    });
  }));
  co_await pending->wake.async_wait(asio::as_tuple(asio::use_awaitable));
  if (!pending->answer) co_return Error(ErrorCode::kDeadlineExceeded, "look up " + host + ": no answer in time");
  if (pending->answer->ok()) {
    if (answers_.size() >= kMaxAnswers) answers_.clear();
    answers_[host] = {.addresses = pending->answer->value(), .until = std::chrono::steady_clock::now() + options_.keep};
  }
  co_return std::move(*pending->answer);
}

}  // namespace dsec::edge
