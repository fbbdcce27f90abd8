// Starts an import worker, listens to it, and makes sure that nothing of it is
// left when run_confined() returns.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "image/import_messages.h"

namespace dsec::image {

// Of the worker: where the first of ConfinedRun::passed is.
inline constexpr int kFirstPassed = 4;
// Whose ids a worker has. kHost is for what no user namespace may see, the marks of
// overlayfs: it begins as host root and gives up all but reading.
enum class WorkerUsers { kOwn, kHost };

struct ConfinedRun {
  std::string helper;         // the program whose main calls import_worker_main()
  std::string job_directory;  // of this run alone, owned by first_id; mode 0711 below a directory of root's
  unsigned first_id = 0;      // ids 0..65535 of a worker with its own are first_id.. of the host
  ImportRequest request;
  int input = -1;             // the worker's standard input; -1 = empty
  std::vector<int> passed;    // further descriptors for it
  WorkerUsers users = WorkerUsers::kOwn;
  bool node_network = false;  // else an empty network namespace
  std::function<Result<void>(int pid)> before_start;  // the namespaces are there, the worker is not yet
  Deadline deadline;
  std::function<void(const WorkerProgress&)> on_progress;
  std::function<void()> on_tick;  // about ten times a second, whether the worker speaks or not
  const std::atomic<bool>* cancelled = nullptr;
};

// Blocks until the worker and every process that it made are gone: it is
// process 1 of a pid namespace, and is killed with it on cancellation (kCancelled,
// seen within 100 ms), at the deadline, or when it breaks the protocol. The
// thread that calls must live on meanwhile: the worker dies with it.
Result<ImportResult> run_confined(const ConfinedRun& run);

}  // namespace dsec::image
