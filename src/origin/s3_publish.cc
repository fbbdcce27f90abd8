// How a bucket publishes: one signed PUT that replaces nothing, or parts.
#include <algorithm>

#include "origin/publish_rules.h"
#include "origin/s3_origin.h"
#include "origin/s3_text.h"

namespace dsec::origin {

namespace {

constexpr std::size_t kMaxParts = 10'000;
constexpr auto kAbortPatience = std::chrono::seconds(10);

const std::pair<std::string, std::string> kIfNew = {"If-None-Match", "*"};

std::string in_quotes(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else
      out += c;
  }
  return out;
}

}  // namespace

Result<void> S3Origin::publish(const ObjectName& name, const Content& content, Deadline deadline) {
  DSEC_TRY(check_publish(name, content));
  Result<void> present = compare_with_present(*this, name, content, deadline);
  if (present.ok() || present.error().code() != ErrorCode::kNotFound) return present;
  return content.size() <= part_bytes_ ? put(name, content, deadline) : put_in_parts(name, content, deadline);
}

Result<void> S3Origin::put(const ObjectName& name, const Content& content, Deadline deadline) {
  S3Request request{.method = "PUT", .path = name.path(), .headers = {kIfNew}, .body = std::string(content.size(), '\0')};
  DSEC_TRY(content.read(0, request.body.data(), request.body.size()));
  DSEC_ASSIGN(const net::HttpAnswer answer, client_.send(std::move(request), deadline));
  if (answer.success()) return {};
  const Error error = status_error(answer);
  if (error.code() != ErrorCode::kConflict) return error;
  Result<void> present = compare_with_present(*this, name, content, deadline);
  // Another upload of it is under way, and nothing can be seen yet.
  if (!present.ok() && present.error().code() == ErrorCode::kNotFound) return Error(ErrorCode::kUnavailable, error.message());
  return present;
}

Result<void> S3Origin::put_in_parts(const ObjectName& name, const Content& content, Deadline deadline) {
  DSEC_ASSIGN(const std::string upload, begin_upload(name.path(), deadline));
  Result<std::string> parts = put_parts(name.path(), upload, content, deadline);
  Result<void> done = parts.ok() ? end_upload(name.path(), upload, std::move(parts).value(), deadline) : Result<void>(parts.error());
  if (!done.ok()) {
    // The parts would cost space for ever. That nothing else can be done when
    // this fails too is why the answer is not looked at.
    const auto aborted = client_.send({.method = "DELETE", .path = name.path(), .query = {{"uploadId", upload}}}, Deadline::in(kAbortPatience));
    (void)aborted;
  }
  if (!done.ok() && done.error().code() != ErrorCode::kConflict) return done;
  // Whatever the server says: some complete an upload over what is there.
  return compare_with_present(*this, name, content, deadline);
}

Result<std::string> S3Origin::begin_upload(const std::string& key, Deadline deadline) {
  DSEC_ASSIGN(const net::HttpAnswer answer, client_.send({.method = "POST", .path = key, .query = {{"uploads", ""}}}, deadline));
  if (!answer.success()) return status_error(answer);
  std::string upload = first_text_of(answer.body, "UploadId");
  if (upload.empty()) return Error(ErrorCode::kDataFault, "the bucket's server begins an upload without a name for it");
  return upload;
}

Result<std::string> S3Origin::put_parts(const std::string& key, const std::string& upload, const Content& content, Deadline deadline) {
  const std::uint64_t part_bytes = std::max<std::uint64_t>(part_bytes_, content.size() / kMaxParts + 1);
  std::string list = "<CompleteMultipartUpload>";
  std::uint64_t number = 0;
  for (std::uint64_t at = 0; at < content.size(); at += part_bytes) {
    const std::string part_number = std::to_string(++number);
    S3Request request{.method = "PUT", .path = key, .query = {{"partNumber", part_number}, {"uploadId", upload}}};
    request.body.resize(std::min(part_bytes, content.size() - at));
    DSEC_TRY(content.read(at, request.body.data(), request.body.size()));
    DSEC_ASSIGN(const net::HttpAnswer answer, client_.send(std::move(request), deadline));
    if (!answer.success()) return status_error(answer);
    const std::string* const tag = answer.header("ETag");
    if (tag == nullptr) return Error(ErrorCode::kDataFault, "the bucket's server takes a part without a tag");
    list += "<Part><PartNumber>" + part_number + "</PartNumber><ETag>" + in_quotes(*tag) + "</ETag></Part>";
  }
  return list + "</CompleteMultipartUpload>";
}

Result<void> S3Origin::end_upload(const std::string& key, const std::string& upload, std::string parts, Deadline deadline) {
  DSEC_ASSIGN(const net::HttpAnswer answer,
              client_.send({.method = "POST", .path = key, .query = {{"uploadId", upload}}, .headers = {kIfNew}, .body = std::move(parts)}, deadline));
  if (!answer.success()) return status_error(answer);
  // A failure can come behind a 200 that was sent ahead.
  if (answer.body.find("<Error>") != std::string::npos)
    return Error(ErrorCode::kUnavailable, "the bucket's server could not complete the upload: " + first_text_of(answer.body, "Code").substr(0, 100));
  return {};
}

}  // namespace dsec::origin
