// Starts an import worker, listens to it, and makes sure that nothing of it is
// left when run_confined() returns.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "image/import_messages.h"

namespace dsec::image {

struct ConfinedRun {
  std::string helper;         // the program whose main calls import_worker_main()
  std::string job_directory;  // of this run alone, owned by first_id; mode 0711 below a directory of root's
  unsigned first_id = 0;      // ids 0..65535 of the worker are first_id.. of the host
  ImportRequest request;
  int input = -1;             // the worker's standard input; -1 = empty
  bool node_network = false;  // else an empty network namespace
  Deadline deadline;
  std::function<void(const WorkerProgress&)> on_progress;
  const std::atomic<bool>* cancelled = nullptr;
};

// Blocks until the worker and every process that it made are gone: it is
// process 1 of a pid namespace, and is killed with it on cancellation (kCancelled,
// seen within 100 ms), at the deadline, or when it breaks the protocol. The
// thread that calls must live on meanwhile: the worker dies with it.
Result<ImportResult> run_confined(const ConfinedRun& run);

}  // namespace dsec::image
