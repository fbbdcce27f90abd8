#include "image/layer_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "model/layer.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

constexpr std::string_view kAlgorithm = "sha256:";

Result<std::uint64_t> size_of(const std::string& path) {
  struct stat st{};
  if (::stat(path.c_str(), &st) != 0) return errno_error("stat " + path, errno);
  return static_cast<std::uint64_t>(st.st_size);
}

}  // namespace

std::string LayerFiles::path(const std::string& digest, const char* suffix) const { return directory_ + "/" + digest.substr(kAlgorithm.size()) + suffix; }

std::string LayerFiles::metadata(const std::string& digest) const {
  std::string whole = path(digest, ".erofs");
  return ::access(whole.c_str(), F_OK) == 0 ? whole : new_metadata(digest);
}

Result<std::vector<erofs::Device>> LayerFiles::devices(const std::string& digest) const {
  DSEC_ASSIGN(const sys::Fd metadata_file, sys::open_at(AT_FDCWD, metadata(digest), O_RDONLY));
  DSEC_ASSIGN(std::vector<erofs::Device> devices, erofs::read_device_table(metadata_file.get()));
  DSEC_TRY(check_data(devices));
  return devices;
}

Result<DataOnDemand::File> LayerFiles::find_data(const std::string& hex) const {
  const Result<std::uint64_t> bytes = size_of(data(hex));
  if (bytes.ok()) return DataOnDemand::File{data(hex), *bytes};
  return on_demand_ == nullptr || bytes.error().code() != ErrorCode::kNotFound ? Result<DataOnDemand::File>(bytes.error()) : on_demand_->find(hex);
}

bool LayerFiles::is_whole(const erofs::Device& device) const {
  const Result<std::uint64_t> bytes = size_of(data(device.digest));
  return bytes.ok() && *bytes == device.bytes();
}

Result<std::string> LayerFiles::readable_data(const std::string& hex) const {
  DSEC_ASSIGN(const DataOnDemand::File found, find_data(hex));
  return found.path;
}

Result<void> LayerFiles::remove_data(const std::string& hex) const {
  if (::unlink(data(hex).c_str()) != 0 && errno != ENOENT) return errno_error("remove " + data(hex), errno);
  return on_demand_ == nullptr ? Result<void>() : on_demand_->withdraw(hex);
}

Result<void> LayerFiles::check_data(const std::vector<erofs::Device>& devices) const {
  for (const erofs::Device& device : devices) {
    const Result<DataOnDemand::File> found = find_data(device.digest);
    if (!found.ok() || found->bytes != device.bytes()) return Error(ErrorCode::kDataFault, "its data file " + device.digest + " is not whole");
  }
  return {};
}

Result<std::uint64_t> LayerFiles::size(const std::string& digest, const std::vector<erofs::Device>& devices) const {
  DSEC_ASSIGN(std::uint64_t bytes, size_of(metadata(digest)));
  for (const erofs::Device& device : devices) bytes += device.bytes();
  return bytes;
}

Result<LayerFiles::Listing> LayerFiles::list() const {
  Listing listing;
  DSEC_ASSIGN(const std::vector<std::string> names, sys::list_directory(directory_));
  for (const std::string& name : names) {
    const std::size_t dot = name.find('.');
    const std::string hex = name.substr(0, dot);
    const std::string digest = std::string(kAlgorithm) + hex;
    const std::string_view suffix = dot == std::string::npos ? "" : std::string_view(name).substr(dot);
    if (!model::is_digest(digest)) {
      listing.unknown.push_back(name);
    } else if (suffix == ".meta" || suffix == ".erofs") {
      listing.metadata.insert(digest);
    } else if (suffix == ".data") {
      listing.data.insert(hex);
    } else if (suffix == ".json") {
      listing.records.insert(digest);
    } else if (name.ends_with(".new")) {
      if (::unlink((directory_ + "/" + name).c_str()) != 0) return errno_error("remove " + name, errno);
    } else {
      listing.unknown.push_back(name);
    }
  }
  if (on_demand_ != nullptr) {
    DSEC_ASSIGN(const std::vector<std::string> more, on_demand_->list());
    listing.data.insert(more.begin(), more.end());
  }
  return listing;
}

Result<void> LayerFiles::sync() const {
  DSEC_ASSIGN(const sys::Fd fd, sys::open_at(AT_FDCWD, directory_, O_RDONLY | O_DIRECTORY));
  if (::fsync(fd.get()) != 0) return errno_error("sync " + directory_, errno);
  return {};
}

}  // namespace dsec::image
