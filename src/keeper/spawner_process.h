// The spawner as the keeper's child: started, watched, started again.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "sys/fd.h"

namespace dsec::keeper {

class SpawnerProcess {
 public:
  // `listener` stays the keeper's; the child gets a copy.
  SpawnerProcess(std::vector<std::string> command, int listener) : command_(std::move(command)), listener_(listener) {}

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
  std::vector<std::string> command_;
  const int listener_;
  sys::Fd pidfd_;
  pid_t pid_ = 0;
  unsigned starts_ = 0;
  unsigned quick_ends_ = 0;  // in a row
  Instant started_{};
  Instant next_start_{};
};

}  // namespace dsec::keeper
