// The caller's own terminal.
#pragma once

#include <termios.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "sys/fd.h"

namespace dsec::cli {

struct WindowSize {
  std::uint16_t rows = 24;
  std::uint16_t columns = 80;
  bool operator==(const WindowSize&) const = default;
};
bool is_terminal(int fd);
WindowSize window_size();

// Raw mode of standard input; the former settings come back with the destructor,
// and on a signal that ends this process.
class RawMode {
 public:
  static Result<RawMode> enter();
  RawMode(RawMode&& other) noexcept;
  RawMode& operator=(RawMode&&) = delete;
  ~RawMode();

 private:
  explicit RawMode(termios before) : before_(before) {}
  std::optional<termios> before_;
};

// The signals as a descriptor (signalfd) instead of handlers, until the destructor.
class SignalWatch {
 public:
  static Result<SignalWatch> watch(std::initializer_list<int> signals);
  SignalWatch(SignalWatch&& other) noexcept;
  SignalWatch& operator=(SignalWatch&&) = delete;
  ~SignalWatch();
  int fd() const { return fd_.get(); }
  int next();  // the next signal's number, 0 when there is none

 private:
  SignalWatch() = default;
  sys::Fd fd_;
  sigset_t before_{};
};

// A line without echo, from the terminal; from standard input when that is none.
Result<std::string> read_secret(const std::string& prompt);

}  // namespace dsec::cli
