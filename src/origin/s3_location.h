// Where a bucket is and who may use it:
// s3://BUCKET[/PREFIX]?endpoint=URL[&region=NAME][&credentials=FILE][&ca=FILE]
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "net/wire.h"
#include "origin/s3_signature.h"

namespace dsec::origin {

struct S3Location {
  std::string bucket;
  std::string prefix;  // "" or "some/folder/"
  net::ServerAddress endpoint;
  std::string region = "us-east-1";
  std::string credentials_file;  // "" = the environment
  std::string authorities_file;  // PEM; who may vouch for the endpoint besides the system's
  std::string description() const;  // the same again, for people
};

// kInvalidArgument for all else, and for an endpoint without TLS that is not on
// this machine's loopback.
Result<S3Location> parse_s3_location(std::string_view url);

// From the file, in the form that AWS's tools use (its section "default"), which
// nobody but its owner may read; without one from AWS_ACCESS_KEY_ID,
// AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN. No error quotes a secret.
Result<S3Credentials> read_s3_credentials(const std::string& file);

}  // namespace dsec::origin
