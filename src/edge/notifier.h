// Notifier: coroutines of the one event loop wait for "something changed".
//
// The waiter checks its condition, waits, and checks again:
//
//   while (!ready() && clock.now() < by) co_await changed.wait(by);
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <algorithm>
#include <vector>

#include "base/clock.h"

namespace dsec::edge {

namespace asio = boost::asio;

class Notifier {
 public:
  Notifier() = default;
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  // Returns after notify(), or at `by`. The notifier outlives the wait.
  asio::awaitable<void> wait(Instant by) {
    asio::steady_timer timer(co_await asio::this_coro::executor, by);
    const Registration here(*this, timer);
    co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
  }
  void notify() {
    // cancel() only posts completions: no waiter runs, and none is added, in this loop.
    for (asio::steady_timer* timer : waiting_) timer->cancel();
    waiting_.clear();
  }

 private:
  struct Registration {
    Registration(Notifier& notifier, asio::steady_timer& waiter) : owner(notifier), timer(&waiter) {
      owner.waiting_.push_back(timer);
    }
    ~Registration() { std::erase(owner.waiting_, timer); }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;
    Notifier& owner;
    asio::steady_timer* timer;
  };

  std::vector<asio::steady_timer*> waiting_;
};

// For waits that have no deadline of their own; what they wait for has one.
inline constexpr Instant kNoInstant = Instant::max();

}  // namespace dsec::edge
