// A program as the keeper's child: started, watched, started again.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "sys/fd.h"

namespace dsec::keeper {

class SupervisedProgram {
 public:
  // The child gets a copy of `fd`, whose number is the last word of its command;
  // the descriptor itself stays the keeper's and open. `name` is for the log.
  SupervisedProgram(const char* name, std::vector<std::string> command, int fd) : name_(name), command_(std::move(command)), fd_(fd) {}

  // Starts one if none runs and the last did not end just now.
  void start_if_due();
  // Readable when it ended; -1 while none runs.
  int pidfd() const { return pidfd_.get(); }
  // To be called when pidfd() is readable.
  void ended();
  // Milliseconds until start_if_due() has something to do; -1 for never.
  int due_ms() const;
  void stop(Deadline deadline);

  pid_t pid() const { return pid_; }
  unsigned starts() const { return starts_; }

 private:
  const char* const name_;
  const std::vector<std::string> command_;
  const int fd_;
  sys::Fd pidfd_;
  pid_t pid_ = 0;
  unsigned starts_ = 0;
  unsigned quick_ends_ = 0;  // in a row
  Instant started_{};
  Instant next_start_{};
};

}  // namespace dsec::keeper
