#include "image/oci_archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <memory>

#include "erofs/digest.h"
#include "image/tree_writer.h"
#include "model/strict_object.h"
#include "sys/file.h"

namespace dsec::image {

namespace json = boost::json;

namespace {

constexpr std::size_t kDocumentLimit = 4 << 20;
constexpr std::size_t kMostLayers = 512;
constexpr int kDeepestIndex = 4;

#if defined(__x86_64__)
constexpr std::string_view kNodeArchitecture = "amd64";
#elif defined(__aarch64__)
constexpr std::string_view kNodeArchitecture = "arm64";
#else
#error "name this architecture as OCI does"
#endif

// Foreign documents carry fields that we do not know, so these look for what is
// needed and take anything else as absent.
const json::value* member(const json::value* value, std::string_view name) {
  return value != nullptr && value->is_object() ? value->as_object().if_contains(name) : nullptr;
}

std::string text_member(const json::value* value, std::string_view name) {
  const json::value* found = member(value, name);
  return found != nullptr && found->is_string() ? std::string(found->as_string()) : "";
}

const json::array* array_member(const json::value* value, std::string_view name) {
  const json::value* found = member(value, name);
  return found != nullptr ? found->if_array() : nullptr;
}

std::vector<std::string> texts(const json::array* values) {
  std::vector<std::string> out;
  if (values == nullptr) return out;
  for (const json::value& value : *values) {
    if (value.is_string()) out.emplace_back(value.as_string());
  }
  return out;
}

bool is_index(const std::string& media_type) {
  return media_type == "application/vnd.oci.image.index.v1+json" || media_type == "application/vnd.docker.distribution.manifest.list.v2+json";
}

Result<std::string> blob_path(const std::string& digest) {
  if (!model::is_digest(digest)) return Error(ErrorCode::kUnsupported, "a blob is not named by a sha256 digest");
  return "blobs/sha256/" + digest.substr(7);
}

struct FreeReader {
  void operator()(archive* reader) const { archive_read_free(reader); }
};

// Of the bytes after decompression.
Result<std::string> digest_of_content(int fd) {
  const std::unique_ptr<archive, FreeReader> reader(archive_read_new());
  if (!reader) return Error(ErrorCode::kInternal, "cannot make an archive reader");
  archive_read_support_format_raw(reader.get());
  archive_read_support_filter_gzip(reader.get());
  archive_read_support_filter_zstd(reader.get());
  archive_read_support_filter_xz(reader.get());
  archive_entry* entry = nullptr;
  if (archive_read_open_fd(reader.get(), fd, 1 << 18) != ARCHIVE_OK || archive_read_next_header(reader.get(), &entry) != ARCHIVE_OK) {
    return invalid_argument("a layer cannot be read");
  }
  erofs::Sha256 hash;
  for (;;) {
    const void* data = nullptr;
    std::size_t length = 0;
    la_int64_t offset = 0;
    const int status = archive_read_data_block(reader.get(), &data, &length, &offset);
    if (status == ARCHIVE_EOF) return "sha256:" + hash.hex();
    if (status < ARCHIVE_WARN) return invalid_argument("a layer cannot be decompressed");
    hash.update(std::string_view(static_cast<const char*>(data), length));
  }
}

}  // namespace

Result<OciArchive> OciArchive::receive(int input, const std::string& directory, UnpackLimits limits, TarUnpacker::Progress progress) {
  if (::mkdir(directory.c_str(), 0700) != 0) return errno_error("make " + directory, errno);
  DSEC_ASSIGN(sys::Fd for_writer, sys::open_at(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY));
  TreeWriter tree(std::move(for_writer));
  TarUnpacker unpacker(tree, "", limits, std::move(progress));
  DSEC_TRY(unpacker.unpack(input).within("receive the image archive"));

  DSEC_ASSIGN(sys::Fd root, sys::open_at(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY));
  OciArchive archive(std::move(root));
  if (archive.open("index.json").ok()) {
    DSEC_TRY(archive.read_layout().within("read the OCI layout"));
  } else if (archive.open("manifest.json").ok()) {
    DSEC_TRY(archive.read_docker().within("read the docker archive"));
  } else {
    return invalid_argument("neither an OCI layout (index.json) nor a docker archive (manifest.json)");
  }
  return archive;
}

// Docker archives link layers to one another, so links are followed inside.
Result<sys::Fd> OciArchive::open(const std::string& path) const {
  open_how how{};
  how.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV;
  const sys::Fd fd(static_cast<int>(::syscall(SYS_openat2, root_.get(), path.c_str(), &how, sizeof how)));
  struct stat st{};
  if (!fd || ::fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode)) return invalid_argument("the archive holds no file " + tame(path, 200));
  return sys::duplicate(fd.get());
}

Result<std::string> OciArchive::read(const Blob& blob) const {
  DSEC_ASSIGN(const sys::Fd fd, open(blob.path));
  DSEC_ASSIGN(const std::string text, sys::read_all(fd.get(), kDocumentLimit).within(tame(blob.path, 200)));
  erofs::Sha256 hash;
  hash.update(text);
  if (!blob.digest.empty() && "sha256:" + hash.hex() != blob.digest) {
    return Error(ErrorCode::kDataFault, tame(blob.path, 200) + " is not what its digest says");
  }
  return text;
}

Result<OciArchive::Blob> OciArchive::choose_manifest(const std::string& index, int depth) const {
  if (depth > kDeepestIndex) return invalid_argument("the image index is nested too deep");
  DSEC_ASSIGN(const json::value document, model::parse_json(index));
  const json::array* manifests = array_member(&document, "manifests");
  if (manifests == nullptr) return invalid_argument("the image index lists no manifests");
  const json::value* chosen = nullptr;
  for (const json::value& candidate : *manifests) {
    if (const json::value* platform = member(&candidate, "platform")) {
      if (text_member(platform, "os") != "linux" || text_member(platform, "architecture") != kNodeArchitecture) continue;
    }
    if (chosen != nullptr && text_member(chosen, "digest") != text_member(&candidate, "digest")) {
      return invalid_argument("the archive holds several images for linux/" + std::string(kNodeArchitecture) + "; export one");
    }
    chosen = &candidate;
  }
  if (chosen == nullptr) return Error(ErrorCode::kUnsupported, "the archive holds no image for linux/" + std::string(kNodeArchitecture));
  Blob blob{.digest = text_member(chosen, "digest")};
  DSEC_ASSIGN(blob.path, blob_path(blob.digest));
  if (!is_index(text_member(chosen, "mediaType"))) return blob;
  DSEC_ASSIGN(const std::string inner, read(blob));
  return choose_manifest(inner, depth + 1);
}

Result<void> OciArchive::read_layout() {
  DSEC_ASSIGN(const std::string index, read({.path = "index.json"}));
  DSEC_ASSIGN(const Blob manifest_blob, choose_manifest(index, 0));
  DSEC_ASSIGN(const std::string text, read(manifest_blob));
  DSEC_ASSIGN(const json::value manifest, model::parse_json(text));
  const json::array* layers = array_member(&manifest, "layers");
  if (layers == nullptr) return invalid_argument("the manifest lists no layers");
  if (layers->size() > kMostLayers) return Error(ErrorCode::kTooLarge, "the image has more than 512 layers");
  Blob config{.digest = text_member(member(&manifest, "config"), "digest")};
  DSEC_ASSIGN(config.path, blob_path(config.digest));
  std::vector<std::string> diff_ids;
  DSEC_TRY(read_config(config, diff_ids));
  for (const json::value& layer : *layers) {
    if (text_member(&layer, "mediaType").ends_with("+encrypted")) return Error(ErrorCode::kUnsupported, "the image's layers are encrypted");
    Blob blob{.digest = text_member(&layer, "digest")};
    DSEC_ASSIGN(blob.path, blob_path(blob.digest));
    layers_.push_back(std::move(blob));
  }
  return {};
}

Result<void> OciArchive::read_docker() {
  DSEC_ASSIGN(const std::string text, read({.path = "manifest.json"}));
  DSEC_ASSIGN(const json::value document, model::parse_json(text));
  const json::array* images = document.if_array();
  if (images == nullptr || images->empty()) return invalid_argument("manifest.json lists no image");
  if (images->size() > 1) return invalid_argument("the archive holds several images; save one");
  const std::vector<std::string> layers = texts(array_member(&images->front(), "Layers"));
  if (layers.size() > kMostLayers) return Error(ErrorCode::kTooLarge, "the image has more than 512 layers");

  // "<hex>.json" or "blobs/sha256/<hex>": the name is the digest.
  Blob config{.path = text_member(&images->front(), "Config")};
  if (config.path.empty()) return invalid_argument("manifest.json names no configuration");
  std::string name = config.path.substr(config.path.rfind('/') + 1);
  if (name.ends_with(".json")) name.resize(name.size() - 5);
  if (model::is_digest("sha256:" + name)) config.digest = "sha256:" + name;
  std::vector<std::string> diff_ids;
  DSEC_TRY(read_config(config, diff_ids));
  if (diff_ids.size() != layers.size()) return invalid_argument("the configuration and manifest.json differ in the number of layers");
  for (std::size_t i = 0; i < layers.size(); i++) layers_.push_back({.path = layers[i], .digest = "", .diff_id = diff_ids[i]});
  return {};
}

Result<void> OciArchive::read_config(const Blob& blob, std::vector<std::string>& diff_ids) {
  DSEC_ASSIGN(const std::string text, read(blob));
  DSEC_ASSIGN(const json::value document, model::parse_json(text));
  if (const std::string system = text_member(&document, "os"); !system.empty() && system != "linux") return Error(ErrorCode::kUnsupported, "an image for " + tame(system, 32));
  architecture_ = text_member(&document, "architecture");
  if (architecture_.empty()) architecture_ = kNodeArchitecture;
  if (architecture_ != kNodeArchitecture) return Error(ErrorCode::kUnsupported, "an image for " + tame(architecture_, 32) + ", and this node is " + std::string(kNodeArchitecture));
  diff_ids = texts(array_member(member(&document, "rootfs"), "diff_ids"));

  const json::value* settings = member(&document, "config");
  config_.entrypoint = texts(array_member(settings, "Entrypoint"));
  config_.command = texts(array_member(settings, "Cmd"));
  config_.cwd = text_member(settings, "WorkingDir");
  config_.user = text_member(settings, "User");
  for (const std::string& variable : texts(array_member(settings, "Env"))) {
    const std::size_t equals = variable.find('=');
    if (equals != 0 && equals != std::string::npos) config_.env[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  return {};
}

Result<void> OciArchive::apply_layers(TarUnpacker& unpacker) {
  for (std::size_t i = 0; i < layers_.size(); i++) {
    const Blob& layer = layers_[i];
    DSEC_ASSIGN(const sys::Fd fd, open(layer.path));
    if (!layer.digest.empty()) {
      DSEC_ASSIGN(const std::string found, erofs::digest_of_file(fd.get()));
      if (found != layer.digest) return Error(ErrorCode::kDataFault, "layer " + std::to_string(i) + " is not what its digest says");
    }
    if (!layer.diff_id.empty()) {
      DSEC_ASSIGN(const std::string found, digest_of_content(fd.get()));
      if (found != layer.diff_id) return Error(ErrorCode::kDataFault, "layer " + std::to_string(i) + " is not what the configuration says");
      if (::lseek(fd.get(), 0, SEEK_SET) != 0) return errno_error("rewind a layer", errno);
    }
    DSEC_TRY(unpacker.unpack_layer(fd.get()).within("layer " + std::to_string(i)));
    const bool again = std::any_of(layers_.begin() + static_cast<std::ptrdiff_t>(i) + 1, layers_.end(), [&](const Blob& later) { return later.path == layer.path; });
    // Frees the disk early. Fails for one that is reached through a link; its directory goes later anyway.
    if (!again) (void)::unlinkat(root_.get(), layer.path.c_str(), 0);
  }
  return {};
}

}  // namespace dsec::image
