#include "image/layer_store.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <set>

#include "base/fail_point.h"
#include "erofs/digest.h"
#include "image/erofs_mount.h"
#include "model/json.h"
#include "model/strict_object.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

constexpr std::string_view kAlgorithm = "sha256:";
constexpr std::string_view kKept = "layer/";
constexpr std::string_view kImageSuffix = ".erofs";
constexpr std::string_view kRecordSuffix = ".json";
constexpr std::size_t kRecordLimit = 1 << 20;

Result<std::vector<std::string>> names_in(const std::string& directory) {
  DIR* stream = ::opendir(directory.c_str());
  if (stream == nullptr) return errno_error("read " + directory, errno);
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(stream)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  ::closedir(stream);
  return names;
}

Result<model::LayerRecord> read_record(const std::string& path) {
  DSEC_ASSIGN(const std::string text, sys::read_file(path, kRecordLimit));
  DSEC_ASSIGN(const boost::json::value value, model::parse_json(text).within(path));
  return model::layer_from_json(value).within(path);
}

Result<void> sync_directory(const std::string& directory) {
  DSEC_ASSIGN(const sys::Fd fd, sys::open_at(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY));
  if (::fsync(fd.get()) != 0) return errno_error("sync " + directory, errno);
  return {};
}

}  // namespace

LayerStore::LayerStore(std::string directory, sys::DescriptorKeeper& keeper)
    : directory_(std::move(directory)), keeper_(keeper) {}

Result<std::unique_ptr<LayerStore>> LayerStore::open(std::string directory, sys::DescriptorKeeper& keeper) {
  std::unique_ptr<LayerStore> store(new LayerStore(std::move(directory), keeper));
  DSEC_TRY(sys::make_directories(store->directory_, 0700));
  DSEC_TRY(store->load().within("read the layers"));
  DSEC_TRY(store->take_back_mounts().within("take back the mounted layers"));
  return store;
}

std::string LayerStore::image_path(const std::string& digest) const {
  return directory_ + "/" + digest.substr(kAlgorithm.size()) + std::string(kImageSuffix);
}

std::string LayerStore::record_path(const std::string& digest) const {
  return directory_ + "/" + digest.substr(kAlgorithm.size()) + std::string(kRecordSuffix);
}

void LayerStore::note(const std::string& text) {
  if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) notes_.push_back(text);
}

Result<void> LayerStore::load() {
  DSEC_ASSIGN(const std::vector<std::string> names, names_in(directory_));
  std::set<std::string> images;
  std::vector<std::string> records;
  for (const std::string& name : names) {
    const std::size_t dot = name.find('.');
    const std::string digest = std::string(kAlgorithm) + name.substr(0, dot);
    const std::string_view suffix = dot == std::string::npos ? "" : std::string_view(name).substr(dot);
    if (model::is_digest(digest) && suffix == kImageSuffix) {
      images.insert(digest);
    } else if (model::is_digest(digest) && suffix == kRecordSuffix) {
      records.push_back(digest);
    } else if (model::is_digest(digest) && name.ends_with(".new")) {
      if (::unlink((directory_ + "/" + name).c_str()) != 0) return errno_error("remove " + name, errno);
    } else {
      note("unknown file in the layer directory: " + name);
    }
  }
  for (const std::string& digest : records) {
    Result<model::LayerRecord> record = read_record(record_path(digest));
    if (!record.ok() || record->digest != digest) {
      note("the record of layer " + digest + " cannot be read" + (record.ok() ? "" : ": " + record.error().message()));
      images.erase(digest);  // kept for a person to look at
      continue;
    }
    struct stat st{};
    if (!images.contains(digest) || ::stat(image_path(digest).c_str(), &st) != 0 ||
        static_cast<std::uint64_t>(st.st_size) != record->size_bytes) {
      note("layer " + digest + " has lost its image or a part of it");
      images.erase(digest);
      continue;
    }
    images.erase(digest);
    records_.emplace(digest, std::move(record).value());
  }
  for (const std::string& digest : images) {
    if (::unlink(image_path(digest).c_str()) != 0) return errno_error("remove an unpublished image", errno);
  }
  return {};
}

Result<void> LayerStore::take_back_mounts() {
  DSEC_ASSIGN(std::vector<sys::KeptDescriptor> kept, keeper_.get(std::string(kKept)));
  for (sys::KeptDescriptor& descriptor : kept) {
    if (!descriptor.name.starts_with(kKept)) continue;
    const std::string digest = descriptor.name.substr(kKept.size());
    if (records_.contains(digest) && is_erofs(descriptor.fd.get())) {
      mounts_[digest] = std::move(descriptor.fd);
    } else {
      DSEC_TRY(keeper_.drop(descriptor.name));
    }
  }
  return {};
}

Result<int> LayerStore::mount(const std::string& digest) {
  const std::lock_guard lock(mutex_);
  if (!records_.contains(digest)) return Error(ErrorCode::kNotFound, "no layer " + digest);
  if (const auto held = mounts_.find(digest); held != mounts_.end()) return held->second.get();
  DSEC_TRY(fail_point("image.mount"));
  DSEC_ASSIGN(ErofsMount made, mount_erofs(image_path(digest)));
  if (!made.direct_io) note("this kernel mounts EROFS files without directio: layer pages are cached twice (Linux 6.14 mends it)");
  // Kept before anyone sees it: a mount that only this process knows would be
  // made a second time after a restart, beside the one that sandboxes hold.
  DSEC_TRY(keeper_.put(std::string(kKept) + digest, made.mount.get()).within("keep the mount of " + digest));
  return mounts_.emplace(digest, std::move(made.mount)).first->second.get();
}

Result<model::LayerRecord> LayerStore::find(const std::string& digest) const {
  const std::lock_guard lock(mutex_);
  const auto found = records_.find(digest);
  if (found == records_.end()) return Error(ErrorCode::kNotFound, "no layer " + digest);
  return found->second;
}

std::vector<model::LayerRecord> LayerStore::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<model::LayerRecord> records;
  for (const auto& [digest, record] : records_) records.push_back(record);
  return records;
}

Result<model::LayerRecord> LayerStore::publish(const std::string& image_file, model::LayerRecord record) {
  if (!record.digest.empty() && !model::is_digest(record.digest)) return invalid_argument("not a digest: " + record.digest);
  {
    DSEC_ASSIGN(const sys::Fd image, sys::open_at(AT_FDCWD, image_file, O_RDONLY | O_NOFOLLOW));
    struct stat st{};
    if (::fstat(image.get(), &st) != 0) return errno_error("stat " + image_file, errno);
    if (!S_ISREG(st.st_mode) || st.st_nlink != 1) return Error(ErrorCode::kDataFault, "an image is a regular file with one name");
    DSEC_ASSIGN(const bool erofs, is_erofs_image(image.get()));
    if (!erofs) return Error(ErrorCode::kDataFault, "the image is not EROFS");
    if (::fchown(image.get(), 0, 0) != 0 || ::fchmod(image.get(), 0444) != 0) return errno_error("take over the image", errno);
    if (::fsync(image.get()) != 0) return errno_error("sync the image", errno);
    DSEC_ASSIGN(const std::string found, erofs::digest_of_file(image.get()));
    if (!record.digest.empty() && found != record.digest) {
      return Error(ErrorCode::kDataFault, "the image's digest is " + found + ", not " + record.digest);
    }
    record.digest = found;
    record.size_bytes = static_cast<std::uint64_t>(st.st_size);
  }
  const std::string text = boost::json::serialize(model::to_json(record));

  const std::lock_guard lock(mutex_);
  if (const auto known = records_.find(record.digest); known != records_.end()) {
    if (::unlink(image_file.c_str()) != 0) return errno_error("remove " + image_file, errno);
    return known->second;
  }
  DSEC_TRY(fail_point("image.publish.image"));
  if (::rename(image_file.c_str(), image_path(record.digest).c_str()) != 0) return errno_error("publish the image", errno);
  DSEC_TRY(sync_directory(directory_));
  DSEC_TRY(fail_point("image.publish.record"));
  if (Result<void> written = sys::replace_file(record_path(record.digest), text, 0644); !written.ok()) {
    ::unlink(image_path(record.digest).c_str());
    return std::move(written).within("publish the record").error();
  }
  return records_.emplace(record.digest, record).first->second;
}

Result<void> LayerStore::remove(const std::string& digest, const std::function<bool(const std::string&)>& in_use) {
  const std::lock_guard lock(mutex_);
  if (!records_.contains(digest)) return Error(ErrorCode::kNotFound, "no layer " + digest);
  if (in_use && in_use(digest)) return Error(ErrorCode::kConflict, "a sandbox uses layer " + digest);
  if (::unlink(record_path(digest).c_str()) != 0 && errno != ENOENT) return errno_error("remove the record", errno);
  records_.erase(digest);
  DSEC_TRY(sync_directory(directory_));
  DSEC_TRY(fail_point("image.remove.image"));
  if (mounts_.erase(digest) != 0) DSEC_TRY(keeper_.drop(std::string(kKept) + digest));
  if (::unlink(image_path(digest).c_str()) != 0 && errno != ENOENT) return errno_error("remove the image", errno);
  return {};
}

Result<void> LayerStore::verify(const std::string& digest) const {
  if (Result<model::LayerRecord> known = find(digest); !known.ok()) return std::move(known).error();
  DSEC_ASSIGN(const sys::Fd image, sys::open_at(AT_FDCWD, image_path(digest), O_RDONLY));
  DSEC_ASSIGN(const std::string found, erofs::digest_of_file(image.get()));
  if (found != digest) return Error(ErrorCode::kDataFault, "layer " + digest + " holds " + found);
  return {};
}

std::vector<std::string> LayerStore::notes() const {
  const std::lock_guard lock(mutex_);
  return notes_;
}

}  // namespace dsec::image
