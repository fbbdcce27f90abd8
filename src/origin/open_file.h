// A file of a directory origin while it is open. The calls here block without
// any deadline: they are made on expendable threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "origin/buffer.h"
#include "sys/fd.h"

namespace dsec::origin {

class ExpendableThreads;

class OpenFile {
 public:
  // For reading, past the page cache where the file system can do that.
  static Result<std::shared_ptr<OpenFile>> open(const std::string& path, std::weak_ptr<ExpendableThreads> threads);
  // A new one to write to; kConflict when the name is taken.
  static Result<std::shared_ptr<OpenFile>> create(const std::string& path, std::weak_ptr<ExpendableThreads> threads);
  // Closes on one of the threads, because close() asks the servers too.
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  std::uint64_t size() const { return size_; }
  // By O_DIRECT.
  bool direct() const { return direct_; }
  int fd() const { return fd_.get(); }
  // Exactly that range; kDataFault when the file ends before.
  Result<Buffer> read(std::uint64_t offset, std::size_t length) const;
  Result<void> write(std::uint64_t offset, std::string_view bytes) const;
  Result<void> sync() const;

 private:
  OpenFile(sys::Fd fd, bool direct, std::uint64_t size, std::weak_ptr<ExpendableThreads> threads)
      : fd_(std::move(fd)), direct_(direct), size_(size), threads_(std::move(threads)) {}

  sys::Fd fd_;
  const bool direct_;
  const std::uint64_t size_;
  const std::weak_ptr<ExpendableThreads> threads_;
};

// What errno of a file below an origin means: a server that is not there is
// kUnavailable, whichever way its file system says so.
Error store_error(std::string_view doing, int error_number);

}  // namespace dsec::origin
