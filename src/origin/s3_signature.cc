#include "origin/s3_signature.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <map>

#include "base/encoding.h"
#include "model/sha256.h"

namespace dsec::origin {

namespace {

constexpr const char* kAlgorithm = "AWS4-HMAC-SHA256";

std::string hmac(const std::string& key, std::string_view text) {
  std::string out(EVP_MAX_MD_SIZE, '\0');
  unsigned int length = 0;
  DSEC_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                  reinterpret_cast<unsigned char*>(out.data()), &length) != nullptr);
  out.resize(length);
  return out;
}

std::string escaped_path(const std::string& path) {
  std::string out;
  std::size_t at = 0;
  while (at <= path.size()) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    out += net::percent_encode(std::string_view(path).substr(at, slash - at));
    if (slash < path.size()) out += '/';
    at = slash + 1;
  }
  return out;
}

std::string sorted_query(const S3Query& query) {
  std::vector<std::pair<std::string, std::string>> escaped;
  for (const auto& [name, value] : query) escaped.emplace_back(net::percent_encode(name), net::percent_encode(value));
  std::sort(escaped.begin(), escaped.end());
  std::string out;
  for (const auto& [name, value] : escaped) out += (out.empty() ? "" : "&") + name + "=" + value;
  return out;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string stamp_of(WallTime now) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  return std::string(text, std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &utc));
}

std::string signing_key(const std::string& secret, const std::string& day, const std::string& region) {
  return hmac(hmac(hmac(hmac("AWS4" + secret, day), region), "s3"), "aws4_request");
}

}  // namespace

std::string s3_target(const S3Request& request) {
  const std::string query = sorted_query(request.query);
  return escaped_path(request.path) + (query.empty() ? "" : "?" + query);
}

net::HeaderList s3_signed_headers(const S3Request& request, const std::string& host, const std::string& region, const S3Credentials& credentials, WallTime now) {
  const std::string stamp = stamp_of(now);
  const std::string day = stamp.substr(0, 8);
  const std::string payload = to_hex(model::sha256(request.body));
  net::HeaderList out = request.headers;
  out.emplace_back("x-amz-content-sha256", payload);
  out.emplace_back("x-amz-date", stamp);
  if (!credentials.session_token.empty()) out.emplace_back("x-amz-security-token", credentials.session_token);

  std::map<std::string, std::string> sorted{{"host", host}};
  for (const auto& [name, value] : out) sorted[lower(name)] = value;
  std::string names;
  std::string lines;
  for (const auto& [name, value] : sorted) {
    names += (names.empty() ? "" : ";") + name;
    lines += name + ":" + value + "\n";
  }
  const std::string canonical = request.method + "\n" + escaped_path(request.path) + "\n" + sorted_query(request.query) + "\n" + lines + "\n" + names + "\n" + payload;
  const std::string scope = day + "/" + region + "/s3/aws4_request";
  const std::string to_sign = std::string(kAlgorithm) + "\n" + stamp + "\n" + scope + "\n" + to_hex(model::sha256(canonical));
  const std::string signature = to_hex(hmac(signing_key(credentials.secret, day, region), to_sign));
  out.emplace_back("Authorization", std::string(kAlgorithm) + " Credential=" + credentials.key_id + "/" + scope + ",SignedHeaders=" + names + ",Signature=" + signature);
  return out;
}

}  // namespace dsec::origin
