// Brake: what a node does while its memory runs short, in order, and no further than
// it has to.
//
// It is told what the node and its sandboxes hold, and says what is to be done; it
// does no I/O and has no clock. Each look begins with the mildest step that has
// something to do; a harder one comes when the milder ones had time to show and nothing is
// left for them: take in no more, trim who is idle, pause batch sandboxes that run
// nothing, pause idle ones of the latency class, end one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "sys/node_memory.h"

namespace dsec::edge {

struct BrakeOptions {
  std::uint64_t reserve_bytes = 0;   // what stays available for kernel, edge and agents; 0: it never brakes
  double most_stalled_percent = 20;  // counts while less than twice the reserve is available
  Duration patience = std::chrono::seconds(5);     // for a step to show; a fifth of it below a quarter of the reserve
  Duration idle_after = std::chrono::seconds(30);  // without command and request
  std::size_t trims_at_once = 64;
  std::size_t pauses_at_once = 16;
};

// One that runs.
struct BrakeSandbox {
  std::string id;
  bool batch = false;
  bool busy = false;     // commands run, or a request is on its way
  bool trimmed = false;  // and not used since
  Duration unused_for{};
  std::int64_t started_ms = 0;
  std::uint64_t bytes = 0;        // its working set
  std::uint64_t grown_bytes = 0;  // in the last minute
};

struct BrakeAction {
  enum class Kind { kTrim, kPause, kEnd } kind = Kind::kTrim;
  std::string id;
  bool culprit = false;  // kEnd: the shortage is its doing
  std::string why;
};

class Brake {
 public:
  enum class Step { kOff, kNoAdmission, kTrim, kPauseBatch, kPauseLatency, kEnd };

  explicit Brake(BrakeOptions options) : options_(options) {}
  std::vector<BrakeAction> look(const sys::NodeMemory& node, const std::vector<BrakeSandbox>& sandboxes, Instant now);
  Step step() const { return step_; }
  // Why nothing new is taken in; "" while it is.
  const std::string& refusal() const { return refusal_; }
  const BrakeOptions& options() const { return options_; }

 private:
  std::vector<BrakeAction> pauses(const std::vector<BrakeSandbox>& sandboxes, bool batch) const;
  std::vector<BrakeAction> trims(const std::vector<BrakeSandbox>& sandboxes) const;
  std::vector<BrakeAction> end_one(const sys::NodeMemory& node, const std::vector<BrakeSandbox>& sandboxes) const;

  const BrakeOptions options_;
  Step step_ = Step::kOff;
  Instant acted_at_{};
  std::string refusal_;
};

std::string_view to_string(Brake::Step step);

}  // namespace dsec::edge
