// Signed calls of one bucket's server: a bounded number at a time, each on a kept
// connection where there is one.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "net/blocking_client.h"
#include "origin/s3_location.h"

namespace dsec::origin {

class S3Client {
 public:
  struct Options {
    S3Location location;
    S3Credentials credentials;
    std::size_t calls = 64;  // at the same time
  };
  explicit S3Client(Options options);

  // The request's path is below the bucket ("" = the bucket itself). The answer is
  // whatever the server says, which status_error() turns into an error. kExhausted
  // when no call ends before the deadline.
  Result<net::HttpAnswer> send(S3Request request, Deadline deadline, const net::BodySink& sink = {});
  const S3Location& location() const { return location_; }

 private:
  Result<std::unique_ptr<net::BlockingClient>> take(Deadline deadline);
  void give_back(std::unique_ptr<net::BlockingClient> client);

  const S3Location location_;
  const S3Credentials credentials_;
  const std::size_t limit_;
  std::mutex mutex_;  // guards all below; never held over a call
  std::condition_variable freed_;
  std::size_t in_use_ = 0;
  std::vector<std::unique_ptr<net::BlockingClient>> idle_;
};

// What an answer outside 2xx means, by status and by the code in its body.
Error status_error(const net::HttpAnswer& answer);

}  // namespace dsec::origin
