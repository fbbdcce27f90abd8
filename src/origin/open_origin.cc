#include "origin/open_origin.h"

#include "origin/directory_origin.h"
#include "origin/s3_origin.h"

namespace dsec::origin {

Result<std::unique_ptr<Origin>> open_origin(const std::string& url, Deadline deadline) {
  if (url.starts_with('/')) {
    DSEC_ASSIGN(std::unique_ptr<Origin> made, DirectoryOrigin::create({.directory = url}, deadline));
    return made;
  }
  if (!url.starts_with("s3://")) return invalid_argument("\"" + url + "\" is no store: /DIRECTORY or s3://BUCKET?endpoint=URL");
  DSEC_ASSIGN(S3Location location, parse_s3_location(url));
  DSEC_ASSIGN(S3Credentials credentials, read_s3_credentials(location.credentials_file));
  return std::unique_ptr<Origin>(std::make_unique<S3Origin>(S3Origin::Options{.client = {std::move(location), std::move(credentials)}}));
}

}  // namespace dsec::origin
