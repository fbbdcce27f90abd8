#include "image/layer_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <set>

#include "base/fail_point.h"
#include "erofs/checker.h"
#include "erofs/digest.h"
#include "erofs/source.h"
#include "image/capability_text.h"
#include "image/erofs_mount.h"
#include "model/json.h"
#include "model/strict_object.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

constexpr std::size_t kRecordLimit = 1 << 20;

Result<model::LayerRecord> read_record(const std::string& path) {
  DSEC_ASSIGN(const std::string text, sys::read_file(path, kRecordLimit));
  DSEC_ASSIGN(const boost::json::value value, model::parse_json(text).within(path));
  return model::layer_from_json(value).within(path);
}

// What an importer left is a plain file of nobody else's; from here on it is
// root's and does not change. Its size and digest.
struct TakenFile {
  std::uint64_t bytes = 0;
  std::string digest;
};
Result<TakenFile> take_over(const std::string& path) {
  DSEC_ASSIGN(const sys::Fd file, sys::open_at(AT_FDCWD, path, O_RDONLY | O_NOFOLLOW));
  struct stat st{};
  if (::fstat(file.get(), &st) != 0) return errno_error("stat " + path, errno);
  if (!S_ISREG(st.st_mode) || st.st_nlink != 1) return Error(ErrorCode::kDataFault, "an image is a regular file with one name");
  if (::fchown(file.get(), 0, 0) != 0 || ::fchmod(file.get(), 0444) != 0) return errno_error("take over the image", errno);
  if (::fsync(file.get()) != 0) return errno_error("sync the image", errno);
  DSEC_ASSIGN(std::string digest, erofs::digest_of_file(file.get()));
  return TakenFile{static_cast<std::uint64_t>(st.st_size), std::move(digest)};
}

// What was just hashed, looked at again: nobody else can write to it now.
Result<std::vector<erofs::Device>> devices_of(const std::string& path) {
  DSEC_ASSIGN(const sys::Fd file, sys::open_at(AT_FDCWD, path, O_RDONLY | O_NOFOLLOW));
  return erofs::read_device_table(file.get());
}

Result<void> rename_to(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return errno_error("publish " + to, errno);
  return {};
}

Result<void> unlink_if_there(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return errno_error("remove " + path, errno);
  return {};
}

// A build that finds a part sets the time of its record.
std::int64_t last_use(const std::string& record) {
  struct stat st{};
  return ::stat(record.c_str(), &st) == 0 ? st.st_mtim.tv_sec * std::int64_t{1000} : 0;
}

// In both forms.
Result<void> remove_metadata(const LayerFiles& files, const std::string& digest) {
  DSEC_TRY(unlink_if_there(files.metadata(digest)));
  return unlink_if_there(files.new_metadata(digest));
}

Result<void> expect_digest(const std::string& path, const std::string& digest) {
  DSEC_ASSIGN(const sys::Fd file, sys::open_at(AT_FDCWD, path, O_RDONLY));
  DSEC_ASSIGN(const std::string found, erofs::digest_of_file(file.get()));
  if (found != digest) return Error(ErrorCode::kDataFault, path + " holds " + found);
  return {};
}

// Before the kernel meets it. Whoever made the image had hostile bytes in its hands.
Result<erofs::ImageFacts> expect_sound(const std::string& metadata) {
  DSEC_ASSIGN(sys::Fd file, sys::open_at(AT_FDCWD, metadata, O_RDONLY));
  DSEC_ASSIGN(std::unique_ptr<erofs::FileSource> source, erofs::FileSource::open(std::move(file)));
  DSEC_ASSIGN(erofs::Verdict verdict, erofs::check_image(std::move(source)));
  if (!verdict.sound()) return Error(ErrorCode::kDataFault, "the image is not sound: " + verdict.problem->text());
  return std::move(verdict.facts);
}

// As the image has them, whatever its maker said.
void record_privileges(const erofs::ImageFacts& facts, model::LayerRecord& record) {
  record.setuid_files = facts.setuid_files;
  record.capability_files = facts.capability_files;
  record.privileged_files.clear();
  for (const erofs::PrivilegedInode& inode : facts.privileged) record.privileged_files.push_back({inode.path, inode.mode, capability_text(inode.capability)});
  std::sort(record.privileged_files.begin(), record.privileged_files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
}

}  // namespace

LayerStore::LayerStore(std::string directory, sys::DescriptorKeeper& keeper, DataOnDemand* on_demand)
    : files_(std::move(directory), on_demand), mounts_(keeper) {}

Result<std::unique_ptr<LayerStore>> LayerStore::open(std::string directory, sys::DescriptorKeeper& keeper, DataOnDemand* on_demand) {
  std::unique_ptr<LayerStore> store(new LayerStore(std::move(directory), keeper, on_demand));
  DSEC_TRY(sys::make_directories(store->directory(), 0700));
  DSEC_TRY(store->load().within("read the layers"));
  const auto known = [&](const std::string& digest) { return store->layers_.contains(digest); };
  DSEC_TRY(store->mounts_.take_back(known).within("take back the mounted layers"));
  return store;
}

void LayerStore::note(const std::string& text) {
  if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) notes_.push_back(text);
}

Result<void> LayerStore::load() {
  DSEC_ASSIGN(const LayerFiles::Listing listing, files_.list());
  for (const std::string& name : listing.unknown) note("unknown file in the layer directory: " + name);
  for (const std::string& digest : listing.records) {
    Result<model::LayerRecord> record = read_record(files_.record(digest));
    if (!record.ok() || record->digest != digest) {
      note("the record of layer " + digest + " cannot be read" + (record.ok() ? "" : ": " + record.error().message()));
      continue;
    }
    Result<std::vector<erofs::Device>> devices = files_.devices(digest);
    const Result<std::uint64_t> bytes = devices.ok() ? files_.size(digest, *devices) : Result<std::uint64_t>(devices.error());
    if (!bytes.ok() || *bytes != record->size_bytes) {
      note("layer " + digest + " has lost its image or a part of it");
      continue;
    }
    const std::int64_t used = last_use(files_.record(digest));
    layers_.emplace(digest, Layer{.record = std::move(record).value(), .devices = std::move(devices).value(), .used_at_ms = used});
  }
  return remove_unused(listing);
}

// Files of a layer with a record stay, also of one that cannot be used: they are
// for a person to look at.
Result<void> LayerStore::remove_unused(const LayerFiles::Listing& listing) {
  for (const std::string& digest : listing.metadata) {
    if (!listing.records.contains(digest)) DSEC_TRY(remove_metadata(files_, digest).within("remove an unpublished image"));
  }
  if (layers_.size() != listing.records.size()) return {};
  std::vector<std::string> parts;
  for (const auto& [digest, layer] : layers_) {
    if (!layer.record.diff_id.empty()) parts.push_back(digest);
  }
  DSEC_TRY(remove_unused_parts(parts).within("remove parts of no image"));
  std::set<std::string> used;
  for (const auto& [digest, layer] : layers_) {
    for (const erofs::Device& device : layer.devices) used.insert(device.digest);
  }
  for (const std::string& hex : listing.data) {
    if (!used.contains(hex)) DSEC_TRY(files_.remove_data(hex).within("remove unpublished data"));
  }
  return {};
}

bool LayerStore::data_in_use(const std::string& hex, const std::set<std::string>& but) const {
  return std::any_of(layers_.begin(), layers_.end(), [&](const auto& entry) {
    if (but.contains(entry.first)) return false;
    const std::vector<erofs::Device>& devices = entry.second.devices;
    return std::any_of(devices.begin(), devices.end(), [&](const erofs::Device& device) { return device.digest == hex; });
  });
}

Result<int> LayerStore::mount(const std::string& digest) {
  if (const std::optional<int> held = mounts_.find(digest)) return *held;
  DSEC_ASSIGN(const model::LayerRecord record, find(digest));
  if (record.kind == model::LayerKind::kVerifier) return Error(ErrorCode::kPermissionDenied, "a verifier layer is mounted nowhere");
  DSEC_ASSIGN(const std::vector<erofs::Device> devices, devices_of_layer(digest));
  DSEC_ASSIGN(const int made, mounts_.get(digest, [&] { return mount_now(digest, devices); }));
  const std::lock_guard lock(mutex_);
  if (layers_.contains(digest)) return made;
  DSEC_TRY(mounts_.drop(digest));  // removed meanwhile
  return Error(ErrorCode::kNotFound, "no layer " + digest);
}

Result<sys::Fd> LayerStore::mount_now(const std::string& digest, const std::vector<erofs::Device>& devices) {
  DSEC_TRY(fail_point("image.mount"));
  std::vector<std::string> data;
  for (const erofs::Device& device : devices) {
    DSEC_ASSIGN(std::string path, files_.readable_data(device.digest));
    data.push_back(std::move(path));
  }
  DSEC_ASSIGN(ErofsMount made, mount_erofs(files_.metadata(digest), data));
  if (!made.direct_io) {
    const std::lock_guard lock(mutex_);
    note("this kernel mounts EROFS files without directio: layer pages are cached twice (Linux 6.14 mends it)");
  }
  return std::move(made.mount);
}

Result<model::LayerRecord> LayerStore::find(const std::string& digest) const {
  const std::lock_guard lock(mutex_);
  const auto found = layers_.find(digest);
  if (found == layers_.end()) return Error(ErrorCode::kNotFound, "no layer " + digest);
  return found->second.record;
}

std::vector<model::LayerRecord> LayerStore::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<model::LayerRecord> records;
  for (const auto& [digest, layer] : layers_) {
    if (layer.record.diff_id.empty()) records.push_back(layer.record);
  }
  return records;
}

Result<model::LayerRecord> LayerStore::publish(const ImageFiles& files, model::LayerRecord record, PartHolds* holds) {
  if (!record.digest.empty() && !model::is_digest(record.digest)) return invalid_argument("not a digest: " + record.digest);
  DSEC_ASSIGN(const TakenFile metadata, take_over(files.metadata));
  TakenFile data;
  if (!files.data.empty()) {
    DSEC_ASSIGN(data, take_over(files.data));
  }
  if (!record.digest.empty() && metadata.digest != record.digest) {
    return Error(ErrorCode::kDataFault, "the image's digest is " + metadata.digest + ", not " + record.digest);
  }
  record.digest = metadata.digest;
  DSEC_ASSIGN(const std::vector<erofs::Device> devices, devices_of(files.metadata));
  if (data.bytes != 0 && (devices.empty() || "sha256:" + devices[0].digest != data.digest || devices[0].bytes() != data.bytes)) {
    return Error(ErrorCode::kDataFault, "the image's data is not what its metadata says");
  }
  DSEC_ASSIGN(const erofs::ImageFacts facts, expect_sound(files.metadata));
  record_privileges(facts, record);
  record.size_bytes = metadata.bytes;
  for (const erofs::Device& device : devices) record.size_bytes += device.bytes();
  const std::string text = boost::json::serialize(model::to_json(record));

  const std::lock_guard lock(mutex_);
  if (const auto known = layers_.find(record.digest); known != layers_.end()) {
    DSEC_TRY(unlink_if_there(files.metadata));
    DSEC_TRY(unlink_if_there(files.data));
    known->second.published = std::chrono::steady_clock::now();
    if (holds != nullptr) hold(record.digest, *holds);
    return known->second.record;
  }
  Result<void> published = name_files(files, record.digest, devices, data.bytes != 0);
  if (published.ok()) published = fail_point("image.publish.record");
  if (published.ok()) published = sys::replace_file(files_.record(record.digest), text, 0644).within("publish the record");
  if (!published.ok()) {
    (void)unlink_if_there(files_.metadata(record.digest));
    (void)remove_data(devices);
    return std::move(published).error();
  }
  if (holds != nullptr) hold(record.digest, *holds);
  const std::int64_t used = last_use(files_.record(record.digest));
  return layers_.emplace(record.digest, Layer{record, devices, std::chrono::steady_clock::now(), used}).first->second.record;
}

Result<void> LayerStore::adopt_data(const std::string& path, const erofs::Device& device) {
  DSEC_ASSIGN(const TakenFile data, take_over(path));
  if (data.digest != "sha256:" + device.digest || data.bytes != device.bytes()) return Error(ErrorCode::kDataFault, "the data is not what its digest says");
  const std::lock_guard lock(mutex_);
  return rename_to(path, files_.data(device.digest));
}

bool LayerStore::has_data(const erofs::Device& device) const { return files_.check_data({device}).ok(); }

Result<void> LayerStore::name_files(const ImageFiles& files, const std::string& digest, const std::vector<erofs::Device>& devices, bool own_data) {
  DSEC_TRY(fail_point("image.publish.data"));
  // What is there already may be what a broken disk left of it; what can be read
  // on demand alone is had whole now.
  if (own_data && !files_.is_whole(devices[0])) {
    DSEC_TRY(rename_to(files.data, files_.data(devices[0].digest)));
    DSEC_TRY(files_.sync());
  } else {
    DSEC_TRY(unlink_if_there(files.data));
  }
  DSEC_TRY(files_.check_data(devices));
  DSEC_TRY(fail_point("image.publish.image"));
  DSEC_TRY(rename_to(files.metadata, files_.new_metadata(digest)));
  return files_.sync();
}

Result<void> LayerStore::remove_data(const std::vector<erofs::Device>& devices) {
  for (const erofs::Device& device : devices) {
    if (!data_in_use(device.digest)) DSEC_TRY(files_.remove_data(device.digest));
  }
  return {};
}

Result<void> LayerStore::remove(const std::string& digest, const std::function<bool(const std::string&)>& in_use) {
  const std::lock_guard lock(mutex_);
  const auto found = layers_.find(digest);
  if (found == layers_.end()) return Error(ErrorCode::kNotFound, "no layer " + digest);
  if (in_use && in_use(digest)) return Error(ErrorCode::kConflict, "layer " + digest + " is in use");
  if (held_parts_.contains(digest)) return Error(ErrorCode::kConflict, "a build uses layer " + digest);
  const std::vector<std::string> parts = found->second.record.parts;
  DSEC_TRY(remove_known(digest));
  return remove_unused_parts(parts);
}

Result<void> LayerStore::remove_known(const std::string& digest) {
  const auto found = layers_.find(digest);
  DSEC_TRY(unlink_if_there(files_.record(digest)));
  const std::vector<erofs::Device> devices = std::move(found->second.devices);
  layers_.erase(found);
  DSEC_TRY(files_.sync());
  DSEC_TRY(fail_point("image.remove.image"));
  DSEC_TRY(mounts_.drop(digest));
  DSEC_TRY(remove_metadata(files_, digest));
  return remove_data(devices);
}

bool LayerStore::is_fresh(const std::string& digest, std::chrono::milliseconds idle) const {
  const auto found = layers_.find(digest);
  if (found == layers_.end() || found->second.published == Instant::min()) return false;
  return std::chrono::steady_clock::now() - found->second.published < idle;
}

bool LayerStore::published_within(const std::string& digest, std::chrono::milliseconds idle) const {
  const std::lock_guard lock(mutex_);
  return is_fresh(digest, idle);
}

bool LayerStore::in_use_by_build(const std::string& digest) const {
  const std::lock_guard lock(mutex_);
  return held_parts_.contains(digest);
}

Result<void> LayerStore::remove_idle(const std::string& digest, std::chrono::milliseconds idle) {
  return remove(digest, [&](const std::string& one) { return is_fresh(one, idle); });
}

bool LayerStore::touch(const std::string& digest) {
  const std::lock_guard lock(mutex_);
  const auto found = layers_.find(digest);
  if (found == layers_.end()) return false;
  found->second.published = std::chrono::steady_clock::now();
  return true;
}

Result<std::vector<erofs::Device>> LayerStore::devices_of_layer(const std::string& digest) const {
  const std::lock_guard lock(mutex_);
  const auto found = layers_.find(digest);
  if (found == layers_.end()) return Error(ErrorCode::kNotFound, "no layer " + digest);
  return found->second.devices;
}

Result<void> LayerStore::verify(const std::string& digest) const {
  DSEC_ASSIGN(const std::vector<erofs::Device> devices, devices_of_layer(digest));
  DSEC_TRY(expect_digest(files_.metadata(digest), digest));
  for (const erofs::Device& device : devices) {
    DSEC_ASSIGN(const std::string path, files_.readable_data(device.digest));
    DSEC_TRY(expect_digest(path, "sha256:" + device.digest));
  }
  return {};
}

Result<std::vector<LayerStore::Data>> LayerStore::data(const std::string& digest) const {
  DSEC_ASSIGN(const std::vector<erofs::Device> devices, devices_of_layer(digest));
  std::vector<Data> out;
  for (const erofs::Device& device : devices) out.push_back({device, files_.is_whole(device)});
  return out;
}

Result<LayerStore::OpenFiles> LayerStore::open_files(const std::string& digest) const {
  DSEC_ASSIGN(const std::vector<erofs::Device> devices, devices_of_layer(digest));
  OpenFiles out;
  DSEC_ASSIGN(out.metadata, sys::open_at(AT_FDCWD, files_.metadata(digest), O_RDONLY));
  for (const erofs::Device& device : devices) {
    DSEC_ASSIGN(const std::string path, files_.readable_data(device.digest));
    DSEC_ASSIGN(sys::Fd data, sys::open_at(AT_FDCWD, path, O_RDONLY));
    out.data.push_back(std::move(data));
  }
  return out;
}

std::vector<std::string> LayerStore::layers_with_data(const std::string& hex) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (const auto& [digest, layer] : layers_)
    if (std::any_of(layer.devices.begin(), layer.devices.end(), [&](const erofs::Device& device) { return device.digest == hex; })) out.push_back(digest);
  return out;
}

std::set<std::string> LayerStore::objects() const {
  const std::lock_guard lock(mutex_);
  std::set<std::string> out;
  for (const auto& [digest, layer] : layers_) {
    out.insert(digest.substr(digest.find(':') + 1));
    for (const erofs::Device& device : layer.devices) out.insert(device.digest);
  }
  return out;
}

std::vector<std::string> LayerStore::notes() const {
  const std::lock_guard lock(mutex_);
  return notes_;
}

}  // namespace dsec::image
