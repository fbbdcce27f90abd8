#include "image/registry_worker.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "erofs/digest.h"
#include "image/child_program.h"
#include "image/oci_archive.h"
#include "image/registry_reference.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

constexpr std::size_t kDocumentLimit = 4 << 20;
constexpr std::size_t kAuthLimit = 64 << 10;
constexpr std::size_t kLogLimit = 1 << 20;
constexpr const char* kAuthFile = "/work/memory/auth.json";
constexpr const char* kAuthorities = "/work/authorities";
constexpr const char* kLog = "/work/skopeo.log";
constexpr const char* kDocument = "/work/document";

// skopeo tells kinds of failure apart by their words alone.
struct Complaint {
  std::string_view words;
  ErrorCode code;
};
constexpr Complaint kComplaints[] = {
    {"manifest unknown", ErrorCode::kNotFound},
    {"name unknown", ErrorCode::kNotFound},
    {"repository name not known", ErrorCode::kNotFound},
    {"blob unknown", ErrorCode::kDataFault},
    {"Digest did not match", ErrorCode::kDataFault},
    {"does not match", ErrorCode::kDataFault},
    {"unauthorized", ErrorCode::kPermissionDenied},
    {"authentication required", ErrorCode::kPermissionDenied},
    {"no basic auth credentials", ErrorCode::kPermissionDenied},
    {"denied", ErrorCode::kPermissionDenied},
    {"x509: certificate", ErrorCode::kUnavailable},
    {"no image found in manifest list", ErrorCode::kUnsupported},
    {"No space left on device", ErrorCode::kExhausted},
};

// The last line that says something, without what a logger puts around it.
std::string last_words(const std::string& log) {
  std::string_view rest = log;
  while (!rest.empty() && (rest.back() == '\n' || rest.back() == '\r')) rest.remove_suffix(1);
  std::string_view line = rest.substr(rest.rfind('\n') == std::string_view::npos ? 0 : rest.rfind('\n') + 1);
  if (const std::size_t message = line.find("msg=\""); message != std::string_view::npos) line = line.substr(message + 5, line.size() - message - 6);
  return tame(line.substr(0, 600), 600);
}

Error complaint(Error failed) {
  const Result<std::string> log = sys::read_file(kLog, kLogLimit);
  if (!log.ok() || log->empty()) return failed;
  const std::string words = last_words(*log);
  for (const Complaint& known : kComplaints) {
    if (words.find(known.words) != std::string::npos) return Error(known.code, "skopeo: " + words);
  }
  return Error(ErrorCode::kUnavailable, "skopeo: " + words);
}

// skopeo with its global options, then `arguments`. What it prints on standard output
// goes into kDocument.
Result<void> run_skopeo(const ImportRequest& request, std::vector<std::string> arguments) {
  std::vector<std::string> argv = {"/usr/bin/skopeo", "--insecure-policy", "--override-os", "linux", "--override-arch", request.architecture, "--tmpdir", "/work"};
  if (::access(kAuthFile, F_OK) == 0) arguments.insert(arguments.begin() + 1, {"--authfile", kAuthFile});
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  (void)::unlink(kLog);
  Result<void> ran = run_program(argv, {"PATH=/usr/bin:/bin", "HOME=/work", "XDG_RUNTIME_DIR=/work", "SSL_CERT_DIR=/etc/ssl/certs"}, {.output = kDocument, .errors = kLog});
  if (ran.ok()) return {};
  if (ran.error().code() == ErrorCode::kUnsupported) return Error(ErrorCode::kUnsupported, "pulling from a registry needs the package skopeo on this node");
  return complaint(std::move(ran).error());
}

Result<void> keep_authfile() {
  DSEC_ASSIGN(const std::string text, sys::read_all(STDIN_FILENO, kAuthLimit).within("read the authfile"));
  if (text.empty()) return {};
  DSEC_ASSIGN(const sys::Fd file, sys::open_at(AT_FDCWD, kAuthFile, O_WRONLY | O_CREAT | O_EXCL, 0600));
  return sys::write_all(file.get(), text);
}

Result<void> make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) != 0) return errno_error("make " + path, errno);
  return {};
}

Result<void> write_file(const std::string& path, const std::string& text) {
  DSEC_ASSIGN(const sys::Fd file, sys::open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL, 0644));
  return sys::write_all(file.get(), text);
}

// skopeo takes every file of the directory that ends in .crt, besides the system's.
Result<void> keep_authorities(const std::string& certificates) {
  if (certificates.empty()) return {};
  DSEC_TRY(make_directory(kAuthorities));
  return write_file(std::string(kAuthorities) + "/own.crt", certificates);
}

void add_trust(std::vector<std::string>& arguments, const ImportRequest& request, const std::string& prefix) {
  arguments.push_back("--" + prefix + "tls-verify=" + (request.plain_http ? "false" : "true"));
  if (!request.authorities.empty()) arguments.insert(arguments.end(), {"--" + prefix + "cert-dir", kAuthorities});
}

Result<std::string> inspect(const ImportRequest& request, const std::string& reference, bool configuration) {
  std::vector<std::string> arguments = {"inspect", "--raw"};
  add_trust(arguments, request, "");
  if (configuration) arguments.push_back("--config");
  arguments.push_back("docker://" + reference);
  DSEC_TRY(run_skopeo(request, std::move(arguments)));
  return sys::read_file(kDocument, kDocumentLimit);
}

std::string digest_of(const std::string& text) {
  erofs::Sha256 hash;
  hash.update(text);
  return "sha256:" + hash.hex();
}

}  // namespace

Result<ImportResult> inspect_registry(const ImportRequest& request) {
  DSEC_TRY(keep_authfile());
  DSEC_TRY(keep_authorities(request.authorities));
  DSEC_ASSIGN(RegistryReference reference, parse_registry_reference(request.reference));
  DSEC_ASSIGN(std::string manifest, inspect(request, reference.text(), false));
  if (reference.digest.empty()) reference.digest = digest_of(manifest);  // the tag may move meanwhile
  DSEC_ASSIGN(const std::string chosen, image_of_index(manifest, request.architecture));
  if (!chosen.empty()) {
    reference.digest = chosen;
    DSEC_ASSIGN(manifest, inspect(request, reference.text(), false));
  }
  DSEC_ASSIGN(const std::string configuration, inspect(request, reference.text(), true));
  DSEC_ASSIGN(const OciArchive image, OciArchive::of_documents(manifest, configuration, request.architecture));
  ImportResult result;
  result.config = image.config();
  result.architecture = image.architecture();
  result.layers = image.layers();
  result.facts["reference"] = reference.text();
  return result;
}

Result<ImportResult> fetch_from_registry(const ImportRequest& request) {
  DSEC_TRY(keep_authfile());
  DSEC_TRY(keep_authorities(request.authorities));
  for (const char* path : {"/work/archive", "/work/archive/blobs", "/work/archive/blobs/sha256"}) DSEC_TRY(make_directory(path));
  DSEC_TRY(write_file("/work/archive/oci-layout", R"({"imageLayoutVersion":"1.0.0"})"));
  // What is at its place is not fetched; nobody looks into it.
  for (const std::string& digest : request.known) {
    if (!model::is_digest(digest)) return Error(ErrorCode::kInternal, "a known blob without a digest");
    DSEC_TRY(write_file("/work/archive/blobs/sha256/" + digest.substr(7), ""));
  }
  std::vector<std::string> copy = {"copy"};
  add_trust(copy, request, "src-");
  copy.insert(copy.end(), {"docker://" + request.reference, "oci:/work/archive:image"});
  DSEC_TRY(run_skopeo(request, std::move(copy)));
  DSEC_ASSIGN(const OciArchive image, OciArchive::open_layout("/work/archive", request.architecture));
  ImportResult result;
  result.config = image.config();
  result.architecture = image.architecture();
  result.layers = image.layers();
  return result;
}

}  // namespace dsec::image
