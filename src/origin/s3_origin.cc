#include "origin/s3_origin.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "origin/publish_rules.h"
#include "origin/s3_text.h"

namespace dsec::origin {

namespace {

constexpr int kPartialContent = 206;
constexpr std::size_t kListPage = 1000;  // more than this no server gives

class S3Object final : public Object {
 public:
  S3Object(S3Client& client, std::string key, std::uint64_t size) : client_(client), key_(std::move(key)), size_(size) {}

  std::uint64_t size() const override { return size_; }

  Result<Buffer> read(std::uint64_t offset, std::size_t length, Deadline deadline) const override {
    DSEC_TRY(check_range(size_, offset, length));
    Buffer out(length);
    if (length == 0) return out;
    std::size_t got = 0;
    const auto take = [&out, &got](std::string_view part) -> Result<void> {
      if (part.size() > out.size() - got) return Error(ErrorCode::kDataFault, "the bucket's server answers with more than was asked for");
      std::memcpy(out.data() + got, part.data(), part.size());
      got += part.size();
      return {};
    };
    const std::string range = std::to_string(offset) + "-" + std::to_string(offset + length - 1);
    DSEC_ASSIGN(const net::HttpAnswer answer, client_.send({.path = key_, .headers = {{"Range", "bytes=" + range}}}, deadline, take));
    DSEC_TRY(check(answer, range));
    if (got != length) return Error(ErrorCode::kDataFault, "the bucket's server answers with less than was asked for");
    return out;
  }

 private:
  Result<void> check(const net::HttpAnswer& answer, const std::string& range) const {
    if (!answer.success()) return status_error(answer);
    if (answer.status != kPartialContent) return Error(ErrorCode::kDataFault, "the bucket's server ignores that only a range was asked for");
    const std::string* const given = answer.header("Content-Range");
    if (given == nullptr || *given != "bytes " + range + "/" + std::to_string(size_))
      return Error(ErrorCode::kDataFault, "the bucket's server answers with another range, or of another object");
    return {};
  }

  S3Client& client_;
  const std::string key_;
  const std::uint64_t size_;
};

Result<std::uint64_t> length_of(const net::HttpAnswer& answer) {
  const std::string* const text = answer.header("Content-Length");
  std::uint64_t value = 0;
  if (text != nullptr) {
    const auto [end, failure] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (failure == std::errc() && end == text->data() + text->size() && !text->empty()) return value;
  }
  return Error(ErrorCode::kDataFault, "the bucket's server does not say how long the object is");
}

// What a list says is at most one page, ascending and behind `after`.
Result<std::vector<std::string>> keys_of(const net::HttpAnswer& answer, const std::string& after) {
  if (!answer.success()) return status_error(answer);
  DSEC_ASSIGN(std::vector<std::string> keys, texts_of(answer.body, "Key"));
  std::string last = after;
  for (const std::string& key : keys) {
    if (key <= last) return Error(ErrorCode::kDataFault, "the bucket's server lists out of order");
    last = key;
  }
  return keys;
}

}  // namespace

S3Origin::S3Origin(Options options) : client_(std::move(options.client)), part_bytes_(options.part_bytes) {}

Result<std::unique_ptr<Object>> S3Origin::open(const ObjectName& name, Deadline deadline) {
  DSEC_ASSIGN(const net::HttpAnswer answer, client_.send({.method = "HEAD", .path = name.path()}, deadline));
  if (!answer.success()) return status_error(answer);
  DSEC_ASSIGN(const std::uint64_t size, length_of(answer));
  return std::unique_ptr<Object>(std::make_unique<S3Object>(client_, name.path(), size));
}

Result<ObjectList> S3Origin::list(const std::string& after, std::size_t limit, Deadline deadline) {
  const std::string& prefix = client_.location().prefix;
  std::string last = after.empty() ? prefix : prefix + after;
  ObjectList out;
  for (bool more = true; more;) {
    S3Query query = {{"list-type", "2"}, {"max-keys", std::to_string(std::min(limit + 1, kListPage))}, {"start-after", last}};
    if (!prefix.empty()) query.emplace_back("prefix", prefix);
    DSEC_ASSIGN(const net::HttpAnswer answer, client_.send({.path = "", .query = query}, deadline));
    DSEC_ASSIGN(const std::vector<std::string> keys, keys_of(answer, last));
    for (const std::string& key : keys) {
      Result<ObjectName> name = parse_object_path(std::string_view(key).substr(std::min(key.size(), prefix.size())));
      if (!name.ok()) continue;
      if (out.names.size() == limit) {
        out.complete = false;
        return out;
      }
      out.names.push_back(std::move(name).value());
    }
    more = first_text_of(answer.body, "IsTruncated") == "true";
    if (more && keys.empty()) return Error(ErrorCode::kDataFault, "the bucket's server lists without getting on");
    if (more) last = keys.back();
  }
  return out;
}

Result<void> S3Origin::remove(const ObjectName& name, Deadline deadline) {
  DSEC_ASSIGN(const net::HttpAnswer answer, client_.send({.method = "DELETE", .path = name.path()}, deadline));
  if (!answer.success() && status_error(answer).code() != ErrorCode::kNotFound) return status_error(answer);
  return {};
}

}  // namespace dsec::origin
