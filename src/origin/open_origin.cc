#include "origin/open_origin.h"

#include <algorithm>
#include <string>

#include "net/authorities.h"
#include "origin/at_rest_origin.h"
#include "origin/s3_origin.h"

namespace dsec::origin {

namespace {

// Cuts name=VALUE out of the query; "" when it is not there.
std::string take_parameter(std::string& url, const std::string& name) {
  for (const char before : {'?', '&'}) {
    const std::string begin = before + name + "=";
    const std::size_t at = url.find(begin);
    if (at == std::string::npos) continue;
    const std::size_t end = std::min(url.find('&', at + 1), url.size());
    const std::string value = url.substr(at + begin.size(), end - at - begin.size());
    if (end < url.size()) url.erase(at + 1, end - at);
    else url.erase(at);
    return value;
  }
  return {};
}

struct Form {
  AtRest form = AtRest::kPlain;
  int level = kUsualLevel;
};

Result<Form> form_of(const std::string& value) {
  if (value.empty() || value == "plain") return Form{};
  if (value == "zstd") return Form{.form = AtRest::kZstd};
  for (int level = 1; level <= kHighestLevel; ++level)
    if (value == "zstd-" + std::to_string(level)) return Form{.form = AtRest::kZstd, .level = level};
  return invalid_argument("at-rest is plain, zstd or zstd-1 to zstd-19, not \"" + value + "\"");
}

Result<std::unique_ptr<Origin>> open_store(const std::string& url, Deadline deadline) {
  if (url.starts_with('/')) {
    DSEC_ASSIGN(std::unique_ptr<Origin> made, DirectoryOrigin::create(directory_options(url), deadline));
    return made;
  }
  if (!url.starts_with("s3://")) return invalid_argument("\"" + url + "\" is no store: /DIRECTORY or s3://BUCKET?endpoint=URL");
  DSEC_ASSIGN(S3Location location, parse_s3_location(url));
  if (!location.authorities_file.empty()) DSEC_TRY(net::read_authorities(location.authorities_file).within("ca"));
  DSEC_ASSIGN(S3Credentials credentials, read_s3_credentials(location.credentials_file));
  return std::unique_ptr<Origin>(std::make_unique<S3Origin>(S3Origin::Options{.client = {std::move(location), std::move(credentials)}}));
}

}  // namespace

std::string without_form(std::string url) {
  (void)take_parameter(url, "at-rest");
  return url;
}

DirectoryOrigin::Options directory_options(std::string url) {
  DirectoryOrigin::Options options;
  if (const std::string usrbio = take_parameter(url, "usrbio"); !usrbio.empty()) options.usrbio_library = usrbio == "off" ? "" : usrbio;
  options.directory = std::move(url);
  return options;
}

Result<std::unique_ptr<Origin>> open_origin(std::string url, Deadline deadline) {
  DSEC_ASSIGN(const Form form, form_of(take_parameter(url, "at-rest")));
  DSEC_ASSIGN(std::unique_ptr<Origin> store, open_store(url, deadline));
  return std::unique_ptr<Origin>(std::make_unique<AtRestOrigin>(std::move(store), form.form, form.level));
}

}  // namespace dsec::origin
