// The adapters that the contract of Origin is asked of.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "origin/at_rest_origin.h"
#include "origin/directory_origin.h"
#include "origin/memory_origin.h"
#include "origin/open_origin.h"
#include "origin/s3_client.h"
#include "origin/s3_text.h"
#include "origin_contract.h"

namespace dsec::origin {

class MemoryFixture final : public OriginFixture {
 public:
  Origin& origin() override { return origin_; }
  Origin& other() override { return origin_; }
  void replace(const ObjectName& name, const std::string& bytes) override { origin_.replace(name, bytes); }
  void leave(const ObjectName& name, const std::string& bytes) override { origin_.leave({.id = "1", .of = name, .bytes = bytes.size()}); }

 private:
  MemoryOrigin origin_;
};

// The same, as a store that keeps data compressed: each node of another setting.
class MixedFormsFixture final : public OriginFixture {
 public:
  MixedFormsFixture() : origin_(std::make_unique<Borrowed>(store_), AtRest::kZstd), other_(std::make_unique<Borrowed>(store_), AtRest::kPlain) {}
  Origin& origin() override { return origin_; }
  Origin& other() override { return other_; }
  void replace(const ObjectName& name, const std::string& bytes) override {
    for (const auto& [raw, packed] : {std::pair(ObjectKind::kData, ObjectKind::kPackedData), std::pair(ObjectKind::kMetadata, ObjectKind::kPackedMetadata)})
      if (name.kind == raw) (void)store_.remove({packed, name.hex}, Deadline::in(std::chrono::seconds(1)));
    store_.replace(name, bytes);
  }
  void leave(const ObjectName& name, const std::string& bytes) override {
    store_.leave({.id = "1", .of = ObjectName{ObjectKind::kPackedData, name.hex}, .bytes = bytes.size()});
  }

 private:
  class Borrowed final : public Origin {
   public:
    explicit Borrowed(Origin& store) : store_(store) {}
    Result<std::unique_ptr<Object>> open(const ObjectName& name, Deadline deadline) override { return store_.open(name, deadline); }
    Result<void> publish(const ObjectName& name, const Content& content, Deadline deadline) override { return store_.publish(name, content, deadline); }
    Result<ObjectList> list(const std::string& after, std::size_t limit, Deadline deadline) override { return store_.list(after, limit, deadline); }
    Result<void> remove(const ObjectName& name, Deadline deadline) override { return store_.remove(name, deadline); }
    Result<std::vector<Leftover>> leftovers(Deadline deadline) override { return store_.leftovers(deadline); }
    Result<void> remove_leftover(const Leftover& leftover, Deadline deadline) override { return store_.remove_leftover(leftover, deadline); }
    std::string description() const override { return store_.description(); }

   private:
    Origin& store_;
  };
  MemoryOrigin store_;
  AtRestOrigin origin_;
  AtRestOrigin other_;
};

// A folder below each of two mounts of one file system, or twice the same.
class DirectoryFixture final : public OriginFixture {
 public:
  DirectoryFixture(const std::string& first, const std::string& second) {
    std::string pattern = first + "/origin-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    origin_ = make(folder_);
    other_ = make(second + folder_.substr(first.size()));
  }
  ~DirectoryFixture() override {
    origin_.reset();
    other_.reset();
    std::filesystem::remove_all(folder_);
  }
  Origin& origin() override { return *origin_; }
  Origin& other() override { return *other_; }
  void replace(const ObjectName& name, const std::string& bytes) override {
    const std::string path = folder_ + "/" + name.path();
    std::ofstream(path + ".new", std::ios::binary) << bytes;
    std::filesystem::rename(path + ".new", path);
  }
  void leave(const ObjectName& name, const std::string& bytes) override {
    std::filesystem::create_directory(folder_ + "/.incoming");
    std::ofstream(folder_ + "/.incoming/" + name.path().substr(3) + "." + std::string(32, '0'), std::ios::binary) << bytes;
  }

 private:
  static std::unique_ptr<Origin> make(const std::string& directory) {
    return std::move(DirectoryOrigin::create({.directory = directory}, Deadline::in(std::chrono::seconds(10)))).value();
  }

  std::string folder_;
  std::unique_ptr<Origin> origin_;
  std::unique_ptr<Origin> other_;
};

// A folder of its own in a bucket, "DSEC_TEST_BUCKET=s3://…?…", made when
// DSEC_TEST_MAKE_BUCKET is set.
class BucketFixture final : public OriginFixture {
 public:
  explicit BucketFixture(const std::string& url) {
    const std::size_t mark = url.find('?');
    static int number = 0;
    const std::string folder = "run-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
    const std::string inside = url.substr(0, mark) + "/" + folder + url.substr(mark);
    S3Location location = parse_s3_location(inside).value();
    S3Credentials credentials = read_s3_credentials(location.credentials_file).value();
    client_ = std::make_unique<S3Client>(S3Client::Options{.location = std::move(location), .credentials = std::move(credentials)});
    if (::getenv("DSEC_TEST_MAKE_BUCKET") != nullptr) (void)send({.method = "PUT", .path = ""});  // it may be there
    origin_ = make(inside);
    other_ = make(inside);
  }
  Origin& origin() override { return *origin_; }
  Origin& other() override { return *other_; }
  void replace(const ObjectName& name, const std::string& bytes) override { EXPECT_TRUE(send({.method = "PUT", .path = name.path(), .body = bytes}).success()); }
  void leave(const ObjectName& name, const std::string& bytes) override {
    const std::string upload = first_text_of(send({.method = "POST", .path = name.path(), .query = {{"uploads", ""}}}).body, "UploadId");
    EXPECT_TRUE(send({.method = "PUT", .path = name.path(), .query = {{"partNumber", "1"}, {"uploadId", upload}}, .body = bytes}).success());
  }

 private:
  static std::unique_ptr<Origin> make(const std::string& url) { return std::move(open_origin(url, Deadline::in(std::chrono::seconds(10)))).value(); }
  net::HttpAnswer send(S3Request request) { return client_->send(std::move(request), Deadline::in(std::chrono::seconds(20))).value(); }

  std::unique_ptr<S3Client> client_;
  std::unique_ptr<Origin> origin_;
  std::unique_ptr<Origin> other_;
};

// Engines that somebody has started: tests/e2e/store_engines_test.py does.
// "DSEC_TEST_MOUNTS=/mnt/a:/mnt/b" are two mounts of one shared file system.
inline void add_engines(std::vector<OriginCase>& cases) {
  const char* const mounts = ::getenv("DSEC_TEST_MOUNTS");
  if (mounts != nullptr) {
    const std::string text = mounts;
    const std::size_t colon = text.find(':');
    cases.push_back({"mounts", [text, colon] { return std::make_unique<DirectoryFixture>(text.substr(0, colon), text.substr(colon + 1)); }});
  }
  const char* const bucket = ::getenv("DSEC_TEST_BUCKET");
  if (bucket != nullptr) cases.push_back({"bucket", [url = std::string(bucket)] { return std::make_unique<BucketFixture>(url); }});
}

inline std::vector<OriginCase> origin_cases() {
  std::vector<OriginCase> cases = {
      {"memory", [] { return std::make_unique<MemoryFixture>(); }},
      {"mixed_forms", [] { return std::make_unique<MixedFormsFixture>(); }},
      {"directory", [] { return std::make_unique<DirectoryFixture>("/var/tmp", "/var/tmp"); }},
  };
  add_engines(cases);
  return cases;
}

}  // namespace dsec::origin
