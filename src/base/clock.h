// Time as an argument: Clock is a port, so that the same objects run on a
// manual clock in tests and in the simulator.
#pragma once

#include <chrono>

namespace dsec {

using Duration = std::chrono::nanoseconds;
using Instant = std::chrono::steady_clock::time_point;   // for waits and deadlines
using WallTime = std::chrono::system_clock::time_point;  // for people and records

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant now() const = 0;
  virtual WallTime wall_now() const = 0;
};

class SystemClock final : public Clock {
 public:
  Instant now() const override { return std::chrono::steady_clock::now(); }
  WallTime wall_now() const override { return std::chrono::system_clock::now(); }
};

class ManualClock final : public Clock {
 public:
  Instant now() const override { return now_; }
  WallTime wall_now() const override { return wall_; }
  void advance(Duration by) {
    now_ += by;
    wall_ += std::chrono::duration_cast<WallTime::duration>(by);
  }

 private:
  Instant now_{};
  WallTime wall_{std::chrono::seconds(1'800'000'000)};
};

// The instant by which a call returns, whatever happens.
class Deadline {
 public:
  static Deadline at(Instant when) { return Deadline(when); }
  static Deadline in(Duration d) { return Deadline(std::chrono::steady_clock::now() + d); }
  Instant when() const { return when_; }
  bool passed() const { return std::chrono::steady_clock::now() >= when_; }
  // Never negative. Milliseconds, rounded up, for poll(2).
  Duration left() const {
    const auto d = when_ - std::chrono::steady_clock::now();
    return d > Duration::zero() ? std::chrono::duration_cast<Duration>(d) : Duration::zero();
  }
  int left_ms() const {
    return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left()).count());
  }

 private:
  explicit Deadline(Instant when) : when_(when) {}
  Instant when_;
};

}  // namespace dsec
