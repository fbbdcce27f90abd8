#include "image/oci_archive.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cerrno>

#include "erofs/digest.h"
#include "image/tree_writer.h"
#include "model/strict_object.h"
#include "sys/file.h"

namespace dsec::image {

namespace json = boost::json;

namespace {

constexpr std::size_t kDocumentLimit = 4 << 20;
constexpr int kDeepestIndex = 4;

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

}  // namespace

Result<OciArchive> OciArchive::receive(int input, const std::string& directory, UnpackLimits limits, const std::string& architecture, TarUnpacker::Progress progress) {
  if (::mkdir(directory.c_str(), 0700) != 0) return errno_error("make " + directory, errno);
  DSEC_ASSIGN(sys::Fd for_writer, sys::open_at(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY));
  TreeWriter tree(std::move(for_writer));
  TarUnpacker unpacker(tree, "", limits, std::move(progress));
  DSEC_TRY(unpacker.unpack(input).within("receive the image archive"));

  DSEC_ASSIGN(sys::Fd root, sys::open_at(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY));
  OciArchive archive(std::move(root), architecture);
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
      if (text_member(platform, "os") != "linux" || text_member(platform, "architecture") != wanted_) continue;
    }
    if (chosen != nullptr && text_member(chosen, "digest") != text_member(&candidate, "digest")) {
      return invalid_argument("the archive holds several images for linux/" + tame(wanted_, 32) + "; export one");
    }
    chosen = &candidate;
  }
  if (chosen == nullptr) return Error(ErrorCode::kUnsupported, "the archive holds no image for linux/" + tame(wanted_, 32));
  Blob blob{.digest = text_member(chosen, "digest")};
  DSEC_ASSIGN(blob.path, blob_path(blob.digest));
  if (!is_index(text_member(chosen, "mediaType"))) return blob;
  DSEC_ASSIGN(const std::string inner, read(blob));
  return choose_manifest(inner, depth + 1);
}

Result<OciArchive> OciArchive::open_layout(const std::string& directory, const std::string& architecture) {
  DSEC_ASSIGN(sys::Fd root, sys::open_at(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY));
  OciArchive archive(std::move(root), architecture);
  DSEC_TRY(archive.read_layout().within("read the OCI layout"));
  return archive;
}

Result<OciArchive> OciArchive::of_documents(const std::string& manifest, const std::string& configuration, const std::string& architecture) {
  OciArchive archive({}, architecture);
  DSEC_ASSIGN(std::vector<Blob> blobs, read_manifest(manifest));
  erofs::Sha256 hash;
  hash.update(configuration);
  if ("sha256:" + hash.hex() != blobs.front().digest) return Error(ErrorCode::kDataFault, "the image's configuration is not what its digest says");
  DSEC_TRY(archive.parse_config(configuration));
  blobs.erase(blobs.begin());
  DSEC_TRY(archive.take_layers(std::move(blobs)));
  return archive;
}

Result<std::string> image_of_index(const std::string& text, const std::string& architecture) {
  DSEC_ASSIGN(const json::value document, model::parse_json(text));
  const json::array* manifests = array_member(&document, "manifests");
  if (manifests == nullptr) return std::string();
  for (const json::value& candidate : *manifests) {
    const json::value* platform = member(&candidate, "platform");
    if (text_member(platform, "os") != "linux" || text_member(platform, "architecture") != architecture) continue;
    std::string digest = text_member(&candidate, "digest");
    if (!model::is_digest(digest)) return Error(ErrorCode::kUnsupported, "a manifest is not named by a sha256 digest");
    return digest;
  }
  return Error(ErrorCode::kUnsupported, "the registry has no such image for linux/" + tame(architecture, 32));
}

Result<std::vector<OciArchive::Blob>> OciArchive::read_manifest(const std::string& text) {
  DSEC_ASSIGN(const json::value manifest, model::parse_json(text));
  const json::array* layers = array_member(&manifest, "layers");
  if (layers == nullptr) return Error(ErrorCode::kUnsupported, "the manifest lists no layers: it is no image's, or of the first version");
  std::vector<Blob> blobs = {{.path = "", .digest = text_member(member(&manifest, "config"), "digest")}};
  for (const json::value& layer : *layers) {
    if (text_member(&layer, "mediaType").ends_with("+encrypted")) return Error(ErrorCode::kUnsupported, "the image's layers are encrypted");
    blobs.push_back({.path = "", .digest = text_member(&layer, "digest")});
  }
  for (Blob& blob : blobs) {
    DSEC_ASSIGN(blob.path, blob_path(blob.digest));
  }
  return blobs;
}

Result<void> OciArchive::read_layout() {
  DSEC_ASSIGN(const std::string index, read({.path = "index.json"}));
  DSEC_ASSIGN(const Blob manifest_blob, choose_manifest(index, 0));
  DSEC_ASSIGN(const std::string text, read(manifest_blob));
  DSEC_ASSIGN(std::vector<Blob> blobs, read_manifest(text));
  DSEC_TRY(read_config(blobs.front()));
  blobs.erase(blobs.begin());
  return take_layers(std::move(blobs));
}

Result<void> OciArchive::take_layers(std::vector<Blob> blobs) {
  if (blobs.size() > kMostLayers) return Error(ErrorCode::kTooLarge, "the image has more than 512 layers");
  if (blobs.size() != diff_ids_.size()) return invalid_argument("the configuration and the manifest differ in the number of layers");
  for (std::size_t i = 0; i < blobs.size(); i++) layers_.push_back({std::move(blobs[i].path), std::move(blobs[i].digest), diff_ids_[i]});
  return {};
}

Result<void> OciArchive::read_docker() {
  DSEC_ASSIGN(const std::string text, read({.path = "manifest.json"}));
  DSEC_ASSIGN(const json::value document, model::parse_json(text));
  const json::array* images = document.if_array();
  if (images == nullptr || images->empty()) return invalid_argument("manifest.json lists no image");
  if (images->size() > 1) return invalid_argument("the archive holds several images; save one");
  const std::vector<std::string> layers = texts(array_member(&images->front(), "Layers"));

  // "<hex>.json" or "blobs/sha256/<hex>": the name is the digest.
  Blob config{.path = text_member(&images->front(), "Config")};
  if (config.path.empty()) return invalid_argument("manifest.json names no configuration");
  std::string name = config.path.substr(config.path.rfind('/') + 1);
  if (name.ends_with(".json")) name.resize(name.size() - 5);
  if (model::is_digest("sha256:" + name)) config.digest = "sha256:" + name;
  DSEC_TRY(read_config(config));
  std::vector<Blob> blobs;
  for (const std::string& layer : layers) blobs.push_back({.path = layer, .digest = ""});
  return take_layers(std::move(blobs));
}

Result<void> OciArchive::read_config(const Blob& blob) {
  DSEC_ASSIGN(const std::string text, read(blob));
  return parse_config(text);
}

Result<void> OciArchive::parse_config(const std::string& text) {
  DSEC_ASSIGN(const json::value document, model::parse_json(text));
  if (const std::string system = text_member(&document, "os"); !system.empty() && system != "linux") return Error(ErrorCode::kUnsupported, "an image for " + tame(system, 32));
  architecture_ = text_member(&document, "architecture");
  if (architecture_.empty()) architecture_ = model::node_architecture();
  if (architecture_ != wanted_) return Error(ErrorCode::kUnsupported, "an image for " + tame(architecture_, 32) + ", not for " + tame(wanted_, 32));
  diff_ids_ = texts(array_member(member(&document, "rootfs"), "diff_ids"));

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

}  // namespace dsec::image
