#include "agent/event_loop.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>

#include "base/error.h"

namespace dsec::agent {
namespace {
// The generation tells an event of a closed descriptor from one of its successor.
std::uint64_t tag(int fd, std::uint32_t generation) {
  return static_cast<std::uint64_t>(generation) << 32 | static_cast<std::uint32_t>(fd);
}
}  // namespace

EventLoop::EventLoop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) { DSEC_CHECK(epoll_.valid()); }

bool EventLoop::watch(int fd, std::uint32_t events, Handler handler) {
  const std::uint32_t generation = ++generation_;
  epoll_event event{.events = events, .data = {.u64 = tag(fd, generation)}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return false;
  watched_[fd] = {generation, events, std::make_shared<Handler>(std::move(handler))};
  return true;
}

void EventLoop::change(int fd, std::uint32_t events) {
  const auto found = watched_.find(fd);
  if (found == watched_.end() || found->second.events == events) return;
  found->second.events = events;
  epoll_event event{.events = events, .data = {.u64 = tag(fd, found->second.generation)}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::forget(int fd) {
  if (watched_.erase(fd) > 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::TimerId EventLoop::after(Duration delay, std::function<void()> action) {
  const TimerId id = next_timer_++;
  const Instant when = std::chrono::steady_clock::now() + delay;
  timer_times_[id] = when;
  timers_[{when, id}] = std::move(action);
  return id;
}

void EventLoop::cancel(TimerId timer) {
  const auto found = timer_times_.find(timer);
  if (found == timer_times_.end()) return;
  timers_.erase({found->second, timer});
  timer_times_.erase(found);
}

void EventLoop::later(std::function<void()> action) { later_.push_back(std::move(action)); }

int EventLoop::wait_ms() const {
  if (!later_.empty()) return 0;
  if (timers_.empty()) return -1;
  return Deadline::at(timers_.begin()->first.first).left_ms();
}

void EventLoop::run_timers() {
  while (!timers_.empty() && timers_.begin()->first.first <= std::chrono::steady_clock::now()) {
    auto node = timers_.extract(timers_.begin());
    timer_times_.erase(node.key().second);
    node.mapped()();
  }
}

void EventLoop::run() {
  std::array<epoll_event, 32> events;
  while (!stopping_) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_ms());
    DSEC_CHECK(count >= 0 || errno == EINTR);
    for (int i = 0; i < count; ++i) {
      const int fd = static_cast<int>(events[i].data.u64 & 0xFFFFFFFFu);
      const auto found = watched_.find(fd);
      if (found == watched_.end() || found->second.generation != events[i].data.u64 >> 32) continue;
      const std::shared_ptr<Handler> handler = found->second.handler;  // outlives a forget() from within
      (*handler)(events[i].events);
    }
    run_timers();
    std::vector<std::function<void()>> actions;
    actions.swap(later_);
    for (auto& action : actions) action();
  }
}

}  // namespace dsec::agent
