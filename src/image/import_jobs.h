// The private directories of import workers: one for each, made for it and removed
// with all that it left.
#pragma once

#include <fcntl.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "sys/fd.h"
#include "sys/file.h"

namespace dsec::image {

// A worker sees its own directory and nothing of another's, so that what it makes
// depends on what it was given to read alone.
class ImportJobs {
 public:
  // Makes and empties `directory`. Any thread may use the result.
  static Result<void> prepare(const std::string& directory);
  ImportJobs(std::string directory, unsigned first_id) : directory_(std::move(directory)), first_id_(first_id) {}

  // Calls work(descriptor of a fresh directory, its path) and removes it afterwards.
  template <typename Work>
  auto with_job(Work work) -> decltype(work(0, std::string())) {
    DSEC_ASSIGN(const sys::Fd parent, sys::open_at(AT_FDCWD, directory_, O_RDONLY | O_DIRECTORY));
    const std::string name = "job-" + std::to_string(next_++);
    auto result = [&]() -> decltype(work(0, std::string())) {
      DSEC_ASSIGN(const sys::Fd job, make(parent.get(), name));
      return work(job.get(), directory_ + "/" + name);
    }();
    Result<void> removed = sys::remove_tree_at(parent.get(), name);
    if (result.ok() && !removed.ok()) return std::move(removed).within("remove " + directory_ + "/" + name).error();
    return result;
  }

 private:
  // Given to the worker's root.
  Result<sys::Fd> make(int parent, const std::string& name) const;

  const std::string directory_;
  const unsigned first_id_;
  std::atomic<std::uint64_t> next_{0};
};

// A file that a worker says it made, taken without trusting its name.
Result<sys::Fd> open_product(int job, const std::string& name);
// The same below `directory` of the job, where links lead on inside.
Result<sys::Fd> open_product_in(int job, const std::string& directory, const std::string& path);

}  // namespace dsec::image
