// An origin in a bucket of an S3 server, addressed by path.
//
// Not believed: checksums and entity tags, conditions on multipart uploads, a 200
// to a request for a range. Looking up the server's name may take longer than a
// call's deadline; nothing else does.
#pragma once

#include <memory>
#include <string>

#include "origin/origin.h"
#include "origin/s3_client.h"

namespace dsec::origin {

class S3Origin final : public Origin {
 public:
  struct Options {
    S3Client::Options client;
    std::size_t part_bytes = 16 << 20;  // larger objects go in parts of this; at least 5 MiB
  };
  explicit S3Origin(Options options);

  Result<std::unique_ptr<Object>> open(const ObjectName& name, Deadline deadline) override;
  Result<void> publish(const ObjectName& name, const Content& content, Deadline deadline) override;
  Result<ObjectList> list(const std::string& after, std::size_t limit, Deadline deadline) override;
  Result<void> remove(const ObjectName& name, Deadline deadline) override;
  Result<std::vector<Leftover>> leftovers(Deadline deadline) override;
  Result<void> remove_leftover(const Leftover& leftover, Deadline deadline) override;
  std::string description() const override { return client_.location().description(); }

 private:
  Result<void> put(const ObjectName& name, const Content& content, Deadline deadline);
  Result<void> put_in_parts(const ObjectName& name, const Content& content, Deadline deadline);
  Result<std::string> begin_upload(const std::string& key, Deadline deadline);
  // The list of parts, as the end of the upload wants it.
  Result<std::string> put_parts(const std::string& key, const std::string& upload, const Content& content, Deadline deadline);
  Result<std::uint64_t> bytes_of_parts(const std::string& key, const std::string& upload, Deadline deadline);
  Result<void> end_upload(const std::string& key, const std::string& upload, std::string parts, Deadline deadline);

  S3Client client_;
  const std::size_t part_bytes_;
};

}  // namespace dsec::origin
