// One thread, one epoll: the loop that everything in aether runs on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "sys/fd.h"

namespace dsec::agent {

class EventLoop {
 public:
  using Handler = std::function<void(std::uint32_t events)>;
  using TimerId = std::uint64_t;  // 0 is never one

  EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Level triggered. One handler a descriptor; the caller forgets it before it
  // closes it. False when the kernel refuses (a regular file, no memory).
  bool watch(int fd, std::uint32_t events, Handler handler);
  void change(int fd, std::uint32_t events);
  void forget(int fd);
  bool watches(int fd) const { return watched_.contains(fd); }

  TimerId after(Duration delay, std::function<void()> action);
  void cancel(TimerId timer);

  // Runs once the events in hand are served, in order.
  void later(std::function<void()> action);

  void run();
  void stop() { stopping_ = true; }

 private:
  struct Watched {
    std::uint32_t generation = 0;
    std::uint32_t events = 0;
    std::shared_ptr<Handler> handler;
  };
  int wait_ms() const;
  void run_timers();

  sys::Fd epoll_;
  std::uint32_t generation_ = 0;
  std::unordered_map<int, Watched> watched_;
  TimerId next_timer_ = 1;
  std::map<std::pair<Instant, TimerId>, std::function<void()>> timers_;
  std::unordered_map<TimerId, Instant> timer_times_;
  std::vector<std::function<void()>> later_;
  bool stopping_ = false;
};

}  // namespace dsec::agent
