#include "origin/s3_client.h"

#include "origin/s3_text.h"

namespace dsec::origin {

S3Client::S3Client(Options options) : location_(std::move(options.location)), credentials_(std::move(options.credentials)), limit_(options.calls) {}

Result<std::unique_ptr<net::BlockingClient>> S3Client::take(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!freed_.wait_until(lock, deadline.when(), [this] { return in_use_ < limit_; }))
    return Error(ErrorCode::kExhausted, "every one of " + std::to_string(limit_) + " calls waits for an answer");
  ++in_use_;
  if (idle_.empty()) return std::make_unique<net::BlockingClient>(location_.endpoint, net::HeaderList());
  std::unique_ptr<net::BlockingClient> kept = std::move(idle_.back());
  idle_.pop_back();
  return kept;
}

void S3Client::give_back(std::unique_ptr<net::BlockingClient> client) {
  const std::lock_guard lock(mutex_);
  --in_use_;
  idle_.push_back(std::move(client));
  freed_.notify_one();
}

Result<net::HttpAnswer> S3Client::send(S3Request request, Deadline deadline, const net::BodySink& sink) {
  if (deadline.passed()) return Error(ErrorCode::kDeadlineExceeded, "no time left");
  request.path = "/" + location_.bucket + (request.path.empty() ? "" : "/" + location_.prefix + request.path);
  net::HttpCall call{.method = request.method, .target = s3_target(request), .deadline = deadline};
  call.headers = s3_signed_headers(request, location_.endpoint.authority(), location_.region, credentials_, std::chrono::system_clock::now());
  call.body = std::move(request.body);
  DSEC_ASSIGN(std::unique_ptr<net::BlockingClient> client, take(deadline));
  Result<net::HttpAnswer> answer = client->call(call, sink);
  give_back(std::move(client));
  return answer;
}

Error status_error(const net::HttpAnswer& answer) {
  const std::string code = first_text_of(answer.body, "Code");
  std::string message = "the bucket's server answers " + std::to_string(answer.status);
  if (!code.empty()) message += " " + code.substr(0, 100);
  switch (answer.status) {
    case 400:
      return Error(ErrorCode::kInvalidArgument, message);
    case 401:
    case 403:
      return Error(ErrorCode::kPermissionDenied, message);
    case 404:
      return Error(code == "NoSuchBucket" ? ErrorCode::kUnavailable : ErrorCode::kNotFound, message);
    case 409:
    case 412:
      return Error(ErrorCode::kConflict, message);
    case 405:
    case 501:
      return Error(ErrorCode::kUnsupported, message);
    default:
      return Error(ErrorCode::kUnavailable, message);
  }
}

}  // namespace dsec::origin
