#include "origin/s3_location.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>

#include "net/header_list.h"
#include "sys/file.h"

namespace dsec::origin {

namespace {

constexpr std::string_view kScheme = "s3://";
constexpr std::size_t kMaxCredentials = 64 << 10;

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

bool is_bucket(std::string_view name) {
  return name.size() >= 3 && name.size() <= 63 && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789.-") == std::string_view::npos;
}

Result<void> read_parameter(std::string_view name, const std::string& value, S3Location& out) {
  if (name == "endpoint") {
    DSEC_ASSIGN(out.endpoint, net::parse_server_address(value));
    if (!out.endpoint.prefix.empty()) return invalid_argument("an endpoint has no path: " + value);
    if (!out.endpoint.tls && !is_loopback(out.endpoint.host)) return invalid_argument("an endpoint beyond this machine is https://: " + value);
  } else if (name == "region") {
    out.region = value;
  } else if (name == "credentials") {
    out.credentials_file = value;
  } else if (name == "ca") {
    if (!value.starts_with('/')) return invalid_argument("ca is the absolute path of a file: " + value);
    out.authorities_file = value;
  } else {
    return invalid_argument("a bucket's address has endpoint, region, credentials and ca, not \"" + std::string(name) + "\"");
  }
  return {};
}

std::string trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r") - first + 1));
}

S3Credentials parse_credentials(std::string_view text) {
  S3Credentials out;
  bool ours = true;
  while (!text.empty()) {
    const std::string line = trimmed(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(text.size(), text.find('\n') == std::string_view::npos ? text.size() : text.find('\n') + 1));
    if (line.starts_with('[')) ours = line == "[default]";
    const std::size_t equals = line.find('=');
    if (!ours || line.starts_with('#') || equals == std::string::npos) continue;
    const std::string name = trimmed(std::string_view(line).substr(0, equals));
    const std::string value = trimmed(std::string_view(line).substr(equals + 1));
    if (name == "aws_access_key_id") out.key_id = value;
    if (name == "aws_secret_access_key") out.secret = value;
    if (name == "aws_session_token") out.session_token = value;
  }
  return out;
}

std::string environment(const char* name) {
  const char* const value = ::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string S3Location::description() const { return std::string(kScheme) + bucket + "/" + prefix + " at " + endpoint.authority(); }

Result<S3Location> parse_s3_location(std::string_view url) {
  if (!url.starts_with(kScheme)) return invalid_argument("a bucket's address is s3://BUCKET?endpoint=URL");
  url.remove_prefix(kScheme.size());
  const std::size_t mark = url.find('?');
  const std::string_view place = url.substr(0, mark);
  std::string_view query = mark == std::string_view::npos ? std::string_view() : url.substr(mark + 1);
  S3Location out;
  out.bucket = std::string(place.substr(0, place.find('/')));
  if (!is_bucket(out.bucket)) return invalid_argument("\"" + out.bucket + "\" is not the name of a bucket");
  if (place.find('/') != std::string_view::npos) out.prefix = std::string(place.substr(place.find('/') + 1));
  if (!out.prefix.empty() && !out.prefix.ends_with('/')) out.prefix += '/';
  while (!query.empty()) {
    const std::string_view one = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), one.size() + 1));
    const std::optional<std::string> value = net::percent_decode(one.substr(std::min(one.size(), one.find('=') + 1)), false);
    if (one.find('=') == std::string_view::npos || !value) return invalid_argument("the bucket's address: \"" + std::string(one) + "\" is no parameter");
    DSEC_TRY(read_parameter(one.substr(0, one.find('=')), *value, out));
  }
  if (out.endpoint.host.empty()) return invalid_argument("a bucket's address needs endpoint=URL");
  if (!out.authorities_file.empty() && !out.endpoint.tls) return invalid_argument("ca goes with an endpoint of https://");
  out.endpoint.authorities = out.authorities_file;
  return out;
}

Result<S3Credentials> read_s3_credentials(const std::string& file) {
  S3Credentials out;
  if (file.empty()) {
    out = {environment("AWS_ACCESS_KEY_ID"), environment("AWS_SECRET_ACCESS_KEY"), environment("AWS_SESSION_TOKEN")};
  } else {
    struct stat st{};
    if (::stat(file.c_str(), &st) != 0) return errno_error("credentials " + file, errno);
    if ((st.st_mode & 077) != 0) return Error(ErrorCode::kPermissionDenied, "credentials " + file + ": others than its owner may read it");
    DSEC_ASSIGN(const std::string text, sys::read_file(file, kMaxCredentials).within("credentials"));
    out = parse_credentials(text);
  }
  const std::string where = file.empty() ? "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment" : "aws_access_key_id and aws_secret_access_key in " + file;
  if (out.key_id.empty() || out.secret.empty()) return Error(ErrorCode::kUnauthenticated, "no credentials for the bucket: " + where + " are needed");
  return out;
}

}  // namespace dsec::origin
