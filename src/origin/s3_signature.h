// Signature Version 4, by which S3 knows who asks. Pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "net/header_list.h"

namespace dsec::origin {

struct S3Credentials {
  std::string key_id;
  std::string secret;
  std::string session_token;  // of temporary ones
};

// Names and values as they are meant; encoding and order come from here.
using S3Query = std::vector<std::pair<std::string, std::string>>;

struct S3Request {
  std::string method = "GET";
  std::string path = "/";      // with "/" between segments, not encoded
  S3Query query;
  net::HeaderList headers;     // without Host
  std::string body;
};

// The path and query as they are sent: escaped, the query sorted.
std::string s3_target(const S3Request& request);
// Host aside, the headers that the request is sent with: its own, the date, the
// SHA-256 of its body, the session's token, and the signature of them all.
net::HeaderList s3_signed_headers(const S3Request& request, const std::string& host, const std::string& region,
                                  const S3Credentials& credentials, WallTime now);

}  // namespace dsec::origin
