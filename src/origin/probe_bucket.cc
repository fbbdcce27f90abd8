// What a bucket is tried for.
#include <algorithm>

#include "base/encoding.h"
#include "base/random.h"
#include "model/sha256.h"
#include "net/wire.h"
#include "origin/probe.h"
#include "origin/s3_client.h"
#include "origin/s3_text.h"

namespace dsec::origin {

namespace {

constexpr std::size_t kBytes = 100'000;

class BucketProbe {
 public:
  BucketProbe(S3Location location, S3Credentials credentials, Deadline deadline)
      : location_(std::move(location)), credentials_(std::move(credentials)), client_({location_, credentials_}), deadline_(deadline) {}

  std::vector<ProbeRow> run() {
    return {range_beyond_the_end(), condition_of_put(), condition_of_parts(), list_of_uploads(), cut_off_put(), wrong_checksum()};
  }

 private:
  std::string new_key() {
    SystemRandom random;
    return ".probe-" + to_hex(random.bytes(8));
  }
  Result<net::HttpAnswer> send(S3Request request) { return client_.send(std::move(request), deadline_); }
  // What the server says to a request that it has to grant.
  Result<net::HttpAnswer> must(S3Request request) {
    DSEC_ASSIGN(net::HttpAnswer answer, send(std::move(request)));
    if (!answer.success()) return status_error(answer);
    return answer;
  }
  void clean(const std::string& key) {
    const auto removed = send({.method = "DELETE", .path = key});
    (void)removed;  // a probe's leftover is small, and named so
  }
  static Result<void> expect(const Result<net::HttpAnswer>& answer, int status) {
    if (!answer.ok()) return answer.error();
    if (answer->status == status) return {};
    return Error(ErrorCode::kDataFault, "the answer was " + std::to_string(answer->status) + " instead of " + std::to_string(status));
  }

  ProbeRow range_beyond_the_end() {
    const std::string key = new_key();
    const auto put = must({.method = "PUT", .path = key, .body = std::string(kBytes, 'r')});
    const Result<void> seen = put.ok() ? expect(send({.path = key, .headers = {{"Range", "bytes=" + std::to_string(kBytes) + "-" + std::to_string(kBytes + 9)}}}), 416)
                                       : Result<void>(put.error());
    clean(key);
    return probe_row("range beyond the end", seen, Finding::kNoted, "416");
  }

  ProbeRow condition_of_put() {
    const std::string key = new_key();
    const S3Request request{.method = "PUT", .path = key, .headers = {{"If-None-Match", "*"}}, .body = "once"};
    const auto first = must(request);
    const Result<void> seen = first.ok() ? expect(send(request), 412) : Result<void>(first.error());
    clean(key);
    return probe_row("conditional PUT", seen, Finding::kRefused, "412 when the name is taken");
  }

  Result<void> complete_over(const std::string& key) {
    const auto put = must({.method = "PUT", .path = key, .body = "first"});
    if (!put.ok()) return put.error();
    DSEC_ASSIGN(const net::HttpAnswer begun, must({.method = "POST", .path = key, .query = {{"uploads", ""}}}));
    const std::string upload = first_text_of(begun.body, "UploadId");
    DSEC_ASSIGN(const net::HttpAnswer part, must({.method = "PUT", .path = key, .query = {{"partNumber", "1"}, {"uploadId", upload}}, .body = "second"}));
    const std::string* const tag = part.header("ETag");
    if (tag == nullptr) return Error(ErrorCode::kDataFault, "a part without a tag");
    const std::string parts = "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>" + *tag + "</ETag></Part></CompleteMultipartUpload>";
    const Result<void> seen = expect(send({.method = "POST", .path = key, .query = {{"uploadId", upload}}, .headers = {{"If-None-Match", "*"}}, .body = parts}), 412);
    end_upload(key, upload);
    return seen;
  }
  void end_upload(const std::string& key, const std::string& upload) {
    const auto ended = send({.method = "DELETE", .path = key, .query = {{"uploadId", upload}}});
    (void)ended;  // it may have been completed
  }
  ProbeRow condition_of_parts() {
    const std::string key = new_key();
    const Result<void> seen = complete_over(key);
    clean(key);
    return probe_row("conditional upload in parts", seen, Finding::kNoted, "412 when the name is taken");
  }

  // By it a collection finds what killed nodes left (s3_leftovers.cc).
  Result<void> find_upload(const std::string& key, const std::string& upload) {
    DSEC_ASSIGN(const net::HttpAnswer answer, must({.path = "", .query = {{"uploads", ""}, {"prefix", location_.prefix + key}}}));
    DSEC_ASSIGN(const std::vector<std::string> uploads, texts_of(answer.body, "UploadId"));
    if (std::find(uploads.begin(), uploads.end(), upload) == uploads.end()) return Error(ErrorCode::kDataFault, "an upload that was begun is not in it");
    if (answer.header("Date") == nullptr) return Error(ErrorCode::kDataFault, "the server does not say what time it is");
    return {};
  }
  ProbeRow list_of_uploads() {
    const std::string key = new_key();
    const auto begun = must({.method = "POST", .path = key, .query = {{"uploads", ""}}});
    const std::string upload = begun.ok() ? first_text_of(begun->body, "UploadId") : "";
    const Result<void> seen = begun.ok() ? find_upload(key, upload) : Result<void>(begun.error());
    if (begun.ok()) end_upload(key, upload);
    return probe_row("list of uploads", seen, Finding::kNoted, "those that were never ended can be found");
  }

  // Half of a request, then nothing: what a client leaves that is killed.
  Result<void> send_half(const std::string& key) {
    S3Request request{.method = "PUT", .path = "/" + location_.bucket + "/" + location_.prefix + key, .body = std::string(kBytes, 'h')};
    net::RequestHead head{.method = "PUT", .target = s3_target(request), .headers = {{"Host", location_.endpoint.authority()}}, .framing = net::BodyFraming::kLength, .length = kBytes};
    for (auto& header : s3_signed_headers(request, location_.endpoint.authority(), location_.region, credentials_, std::chrono::system_clock::now()))
      head.headers.push_back(std::move(header));
    DSEC_ASSIGN(const std::unique_ptr<net::Wire> wire, net::Wire::connect(location_.endpoint, deadline_));
    return wire->write_all(net::to_text(head) + request.body.substr(0, kBytes / 2), deadline_);
  }
  ProbeRow cut_off_put() {
    const std::string key = new_key();
    Result<void> seen = send_half(key);
    // Another whole request: by then the server has seen the end of the first.
    const auto other = new_key();
    if (seen.ok()) seen = expect(send({.method = "PUT", .path = other, .body = "whole"}), 200);
    if (seen.ok()) seen = expect(send({.method = "HEAD", .path = key}), 404);
    clean(other);
    clean(key);
    return probe_row("cut-off PUT", seen, Finding::kRefused, "leaves nothing");
  }

  ProbeRow wrong_checksum() {
    const std::string key = new_key();
    const Result<void> seen = expect(send({.method = "PUT", .path = key, .headers = {{"x-amz-checksum-sha256", to_base64(model::sha256("other"))}}, .body = "bytes"}), 400);
    clean(key);
    return probe_row("checksum header", seen, Finding::kNoted, "a wrong one is refused");
  }

  const S3Location location_;
  const S3Credentials credentials_;
  S3Client client_;
  const Deadline deadline_;
};

}  // namespace

Result<std::vector<ProbeRow>> probe_bucket(const std::string& url, Deadline deadline) {
  DSEC_ASSIGN(S3Location location, parse_s3_location(url));
  DSEC_ASSIGN(S3Credentials credentials, read_s3_credentials(location.credentials_file));
  std::vector<ProbeRow> out = probe_origin(url, deadline);
  if (out.back().finding == Finding::kRefused) return out;
  for (ProbeRow& row : BucketProbe(std::move(location), std::move(credentials), deadline).run()) out.push_back(std::move(row));
  return out;
}

}  // namespace dsec::origin
