// What publishers that were killed left in a bucket: uploads in parts that nobody
// ended. A PUT that is cut off leaves nothing (s3_publish.cc).
#include <time.h>

#include <charconv>

#include "origin/s3_origin.h"
#include "origin/s3_text.h"

namespace dsec::origin {

namespace {

using Seconds = std::chrono::seconds;

Result<Seconds> parse_time(const std::string& text, const char* format) {
  struct tm parts{};
  if (::strptime(text.c_str(), format, &parts) == nullptr) return Error(ErrorCode::kDataFault, "the bucket's server tells a time that is none");
  return Seconds(::timegm(&parts));
}

Result<Seconds> time_of(const net::HttpAnswer& answer) {
  const std::string* const date = answer.header("Date");
  if (date == nullptr) return Error(ErrorCode::kUnsupported, "the bucket's server does not say what time it is");
  return parse_time(*date, "%a, %d %b %Y %H:%M:%S GMT");
}

// One page of the list of uploads.
struct Uploads {
  std::vector<std::string> keys, ids, begun;
};

Result<Uploads> uploads_of(const net::HttpAnswer& answer) {
  if (!answer.success()) return status_error(answer);
  Uploads out;
  DSEC_ASSIGN(out.keys, texts_of(answer.body, "Key"));
  DSEC_ASSIGN(out.ids, texts_of(answer.body, "UploadId"));
  DSEC_ASSIGN(out.begun, texts_of(answer.body, "Initiated"));
  if (out.keys.size() != out.ids.size() || out.keys.size() != out.begun.size())
    return Error(ErrorCode::kDataFault, "the bucket's server lists uploads without all of their names and times");
  return out;
}

}  // namespace

Result<std::vector<Leftover>> S3Origin::leftovers(Deadline deadline) {
  const std::string& prefix = client_.location().prefix;
  std::vector<Leftover> out;
  S3Query query = {{"uploads", ""}};
  if (!prefix.empty()) query.emplace_back("prefix", prefix);
  for (S3Query page = query;;) {
    DSEC_ASSIGN(const net::HttpAnswer answer, client_.send({.path = "", .query = page}, deadline));
    DSEC_ASSIGN(const Uploads uploads, uploads_of(answer));
    if (uploads.keys.empty()) return out;
    DSEC_ASSIGN(const Seconds now, time_of(answer));
    for (std::size_t i = 0; i < uploads.keys.size(); ++i) {
      if (!uploads.keys[i].starts_with(prefix)) continue;
      const Result<ObjectName> name = parse_object_path(std::string_view(uploads.keys[i]).substr(prefix.size()));
      if (!name.ok()) continue;  // somebody else's
      DSEC_ASSIGN(const Seconds begun, parse_time(uploads.begun[i], "%Y-%m-%dT%H:%M:%S"));
      DSEC_ASSIGN(const std::uint64_t bytes, bytes_of_parts(name->path(), uploads.ids[i], deadline));
      out.push_back({.id = uploads.ids[i], .of = *name, .age = now - begun, .bytes = bytes});
      if (out.size() == kMaxLeftovers) return out;
    }
    if (first_text_of(answer.body, "IsTruncated") != "true") return out;
    const std::pair<std::string, std::string> next(first_text_of(answer.body, "NextKeyMarker"), first_text_of(answer.body, "NextUploadIdMarker"));
    S3Query further = query;
    further.emplace_back("key-marker", next.first);
    further.emplace_back("upload-id-marker", next.second);
    if (further == page || next.first.empty()) return Error(ErrorCode::kDataFault, "the bucket's server lists uploads without getting on");
    page = std::move(further);
  }
}

Result<std::uint64_t> S3Origin::bytes_of_parts(const std::string& key, const std::string& upload, Deadline deadline) {
  std::uint64_t bytes = 0;
  for (std::string after = "0";;) {
    DSEC_ASSIGN(const net::HttpAnswer answer, client_.send({.path = key, .query = {{"part-number-marker", after}, {"uploadId", upload}}}, deadline));
    if (answer.status == 404) return bytes;  // ended meanwhile
    if (!answer.success()) return status_error(answer);
    DSEC_ASSIGN(const std::vector<std::string> sizes, texts_of(answer.body, "Size"));
    for (const std::string& text : sizes) {
      std::uint64_t size = 0;
      if (std::from_chars(text.data(), text.data() + text.size(), size).ec != std::errc()) return Error(ErrorCode::kDataFault, "the bucket's server lists a part of no size");
      bytes += size;
    }
    const std::string next = first_text_of(answer.body, "NextPartNumberMarker");
    if (first_text_of(answer.body, "IsTruncated") != "true" || sizes.empty() || next == after) return bytes;
    after = next;
  }
}

Result<void> S3Origin::remove_leftover(const Leftover& leftover, Deadline deadline) {
  if (!leftover.of) return invalid_argument("not a leftover of a bucket: " + leftover.id);
  DSEC_ASSIGN(const net::HttpAnswer answer, client_.send({.method = "DELETE", .path = leftover.of->path(), .query = {{"uploadId", leftover.id}}}, deadline));
  if (!answer.success() && answer.status != 404) return status_error(answer);
  return {};
}

}  // namespace dsec::origin
