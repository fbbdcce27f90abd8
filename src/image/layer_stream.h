// The tar of one OCI layer on its way from its compressed file to the worker that
// converts it.
//
// One worker decompresses, another will parse; between them the bytes pass through
// this process, which hashes them and parses nothing. So the digest that a layer is
// known by is that of the very bytes that the converting worker saw, whatever was in
// them: no archive can have its own content taken for another's layer.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/result.h"
#include "image/import_jobs.h"
#include "sys/fd.h"

namespace dsec::image {

class LayerStream {
 public:
  struct Options {
    std::string helper;
    unsigned first_id = 0;
    std::uint64_t max_bytes = 0;  // of the tar
    Deadline deadline;
  };
  // `blob` is read from its start. All arguments outlive the stream.
  static Result<std::unique_ptr<LayerStream>> start(ImportJobs& jobs, const Options& options, int blob);
  // Ends what still runs.
  ~LayerStream();
  LayerStream(const LayerStream&) = delete;
  LayerStream& operator=(const LayerStream&) = delete;

  // Where the tar can be read.
  int output() const { return output_.get(); }
  // Nobody reads on. When the reader has seen enough, the rest is hashed; when it has
  // failed, nothing more is wanted.
  enum class Reader { kSatisfied, kFailed };
  void close_output(Reader reader);
  // Blocks until all has passed: "sha256:<hex>" of the tar, or why there is no such
  // thing. After close_output(kSatisfied).
  Result<std::string> digest();
  // Why the stream broke by itself; success when it did not.
  Result<void> failure();

 private:
  LayerStream(ImportJobs& jobs, const Options& options, int blob) : jobs_(jobs), options_(options), blob_(blob) {}
  void decompress(sys::Fd into);
  void relay(sys::Fd from, sys::Fd to);
  Result<std::string> pass_on(int from, sys::Fd& to);
  void join();

  ImportJobs& jobs_;
  const Options& options_;
  const int blob_;
  sys::Fd output_;
  std::atomic<bool> given_up_{false};
  // Each written by its thread, read after join().
  Result<void> decompressed_;
  Result<std::string> relayed_ = std::string();
  std::thread decompressor_;
  std::thread relayer_;
};

}  // namespace dsec::image
