// A file of a directory origin, and the way by which it is read: system calls,
// or USRBIO on a mount of 3FS.
#pragma once

#include <memory>
#include <string>

#include "origin/expendable_threads.h"
#include "origin/open_file.h"
#include "origin/usrbio_ring.h"

namespace dsec::origin {

// Safe on any thread.
class StoreFile {
 public:
  // Blocks without a deadline. A file that the ring (which may be none) does not
  // take is read by system calls, and the log says so.
  static Result<std::shared_ptr<StoreFile>> open(const std::string& path, std::weak_ptr<ExpendableThreads> threads, std::shared_ptr<UsrbioRing> ring);
  ~StoreFile();
  StoreFile(const StoreFile&) = delete;
  StoreFile& operator=(const StoreFile&) = delete;

  std::uint64_t size() const { return file_->size(); }
  Result<Buffer> read(ExpendableThreads& threads, std::uint64_t offset, std::size_t length, Deadline deadline) const;

 private:
  StoreFile(std::shared_ptr<OpenFile> file, std::shared_ptr<UsrbioRing> ring) : file_(std::move(file)), ring_(std::move(ring)) {}

  const std::shared_ptr<OpenFile> file_;
  const std::shared_ptr<UsrbioRing> ring_;  // that knows the file, or none
};

// The ring for a directory of a 3FS mount, nullptr on every other file system.
// `device` is the directory's; `mountinfo` is read as /proc/self/mountinfo is. Blocks.
Result<std::shared_ptr<UsrbioRing>> ring_for(const std::string& directory, dev_t device, const std::string& library, const std::string& mountinfo);

// The type of the file system on `device`, "" when no line tells.
std::string file_system_type(std::string_view mountinfo, dev_t device);

}  // namespace dsec::origin
