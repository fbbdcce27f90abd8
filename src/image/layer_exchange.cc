#include "image/layer_exchange.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/encoding.h"
#include "base/random.h"
#include "image/object_file.h"
#include "origin/access_trace.h"
#include "origin/chunk_index.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

using origin::ObjectKind;
using origin::ObjectName;

constexpr auto kShortPatience = std::chrono::seconds(60);
constexpr std::uint64_t kSlowestBytesPerSecond = 1 << 20;
// For so long no collection of another store removes what was put into it: the time
// for a node there to take it, or for it to be put again.
constexpr auto kCopiesStay = std::chrono::hours(7 * 24);

std::string hex_of(const std::string& digest) { return digest.substr(digest.find(':') + 1); }

Deadline for_bytes(std::uint64_t bytes) { return Deadline::in(kShortPatience + std::chrono::seconds(bytes / kSlowestBytesPerSecond)); }

Result<void> publish(origin::Origin& to, const ObjectName& name, const origin::Content& content) {
  return to.publish(name, content, for_bytes(content.size())).within("put " + name.path() + " into " + to.description());
}

// Says the same of the layer's bytes; of the record only the first one's counts.
bool same_parts(const origin::Manifest& a, const origin::Manifest& b) { return a.metadata_bytes == b.metadata_bytes && a.data == b.data; }

std::vector<std::string> hexes_of(const std::vector<origin::ManifestData>& data) {
  std::vector<std::string> out;
  for (const origin::ManifestData& one : data) out.insert(out.end(), {one.hex, one.index_hex});
  return out;
}

// What a take that failed leaves is nobody's.
class Scratch {
 public:
  explicit Scratch(ImageFiles files) : files_(std::move(files)) {}
  ~Scratch() {
    (void)::unlink(files_.metadata.c_str());
    (void)::unlink(files_.data.c_str());
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const ImageFiles& files() const { return files_; }

 private:
  const ImageFiles files_;
};

// A lease that nobody renews: this node has no other one there. `file` is for a moment.
Result<void> pin(const std::vector<std::string>& hexes, origin::Origin& there, const Clock& clock, const std::string& node, const std::string& file) {
  SystemRandom random;
  const std::string state_file = file + "." + to_hex(random.bytes(16));
  origin::LeaseHolder lease(there, clock, {.node = "copy by " + node, .state_file = state_file, .valid = kCopiesStay});
  const Result<origin::LeaseHolder::Held> held = lease.hold(hexes, for_bytes(0));
  (void)::unlink(state_file.c_str());
  if (!held.ok()) return held.error();
  return {};
}

}  // namespace

LayerExchange::LayerExchange(Options options, origin::Origin& origin, LayerStore& layers)
    : options_(std::move(options)), origin_(origin), layers_(layers), lease_(origin, clock_, {.node = options_.node, .state_file = options_.lease_file}) {}

Result<std::unique_ptr<LayerExchange>> LayerExchange::create(Options options, origin::Origin& origin, LayerStore& layers) {
  std::error_code failed;
  std::filesystem::remove_all(options.work_directory, failed);  // of an earlier life
  DSEC_TRY(sys::make_directories(options.work_directory, 0700));
  return std::unique_ptr<LayerExchange>(new LayerExchange(std::move(options), origin, layers));
}

Result<void> LayerExchange::put(const std::string& digest, const std::string& other) {
  const auto named = options_.others.find(other);
  if (!other.empty() && named == options_.others.end()) return Error(ErrorCode::kNotFound, "no store is called " + other);
  DSEC_ASSIGN(const Parts parts, parts_of(digest));
  origin::LeaseHolder::Held held;
  if (other.empty()) {
    DSEC_ASSIGN(held, lease_.hold(parts.hexes(), for_bytes(0)));
  } else {
    DSEC_TRY(pin(parts.hexes(), *named->second, clock_, options_.node, scratch("pin")));
  }
  origin::Origin& to = other.empty() ? origin_ : *named->second;
  for (std::size_t i = 0; i < parts.data.size(); ++i) {
    DSEC_TRY(publish(to, {ObjectKind::kData, parts.data[i].hex()}, parts.data[i]));
    DSEC_TRY(publish(to, {ObjectKind::kIndex, parts.indexes[i].hex()}, parts.indexes[i]));
  }
  DSEC_TRY(publish(to, {ObjectKind::kMetadata, parts.metadata.hex()}, parts.metadata));
  return put_manifest(parts.manifest, hex_of(digest), to);
}

Result<LayerExchange::Parts> LayerExchange::parts_of(const std::string& digest) const {
  DSEC_ASSIGN(model::LayerRecord record, layers_.find(digest));
  DSEC_ASSIGN(const LayerStore::OpenFiles files, layers_.open_files(digest));
  DSEC_ASSIGN(const std::vector<erofs::Device> devices, erofs::read_device_table(files.metadata.get()));
  DSEC_ASSIGN(origin::Content metadata, origin::Content::of_file(files.metadata.get()));
  Parts out{.manifest = {.metadata_bytes = metadata.size(), .data = {}, .record = std::move(record)}, .metadata = std::move(metadata), .data = {}, .indexes = {}};
  for (std::size_t i = 0; i < devices.size(); ++i) {
    DSEC_ASSIGN(origin::Content data, origin::Content::of_file(files.data.at(i).get(), devices[i].digest));
    DSEC_ASSIGN(const origin::ChunkIndex index, origin::ChunkIndex::of(data).within("data " + devices[i].digest));
    origin::Content index_bytes = origin::Content::of_bytes(std::string(index.bytes()));
    out.manifest.data.push_back({data.hex(), data.size(), index_bytes.hex()});
    out.data.push_back(std::move(data));
    out.indexes.push_back(std::move(index_bytes));
  }
  return out;
}

std::vector<std::string> LayerExchange::Parts::hexes() const {
  std::vector<std::string> out = hexes_of(manifest.data);
  out.push_back(metadata.hex());
  return out;
}

Result<origin::Collection> LayerExchange::collect(origin::CollectionOptions options) {
  options.node = options_.node;
  return origin::collect(origin_, clock_, options);
}

Result<std::map<std::string, std::string>> LayerExchange::traces(const std::string& digest) const {
  std::map<std::string, std::string> out;
  DSEC_ASSIGN(const std::vector<LayerStore::Data> data, layers_.data(digest));
  for (const LayerStore::Data& one : data) {
    const std::string& hex = one.device.digest;
    Result<std::string> bytes = origin::read_whole(origin_, {ObjectKind::kTrace, hex}, origin::AccessTrace::kMaxBytes, for_bytes(0));
    if (bytes.ok()) out.emplace(hex, std::move(bytes).value());
    else if (bytes.error().code() != ErrorCode::kNotFound) return std::move(bytes).within("the access trace of " + hex).error();
  }
  return out;
}

Result<bool> LayerExchange::collection_was_cut_off() { return origin::was_cut_off(origin_, options_.node, for_bytes(0)); }

Result<bool> LayerExchange::renew_lease(const std::set<std::string>& digests) {
  std::set<std::string> hexes = layers_.objects();
  for (const std::string& digest : digests) hexes.insert(hex_of(digest));
  return lease_.renew(hexes, for_bytes(0));
}

Result<void> LayerExchange::put_manifest(const origin::Manifest& manifest, const std::string& hex, origin::Origin& to) {
  const ObjectName name{ObjectKind::kManifest, hex};
  DSEC_ASSIGN(const std::string sealed, origin::seal_manifest(manifest, options_.signing_key));
  Result<void> done = publish(to, name, origin::Content::of_bytes(sealed));
  if (done.ok() || done.error().code() != ErrorCode::kConflict) return done;
  DSEC_ASSIGN(const std::string there, origin::read_whole(to, name, origin::kMaxManifestBytes, for_bytes(0)));
  const Result<origin::Manifest> theirs = origin::unseal_manifest(there, hex, options_.trusted_keys);
  if (!theirs.ok()) return Error(ErrorCode::kConflict, "the store has the layer already, but " + theirs.error().message());
  if (!same_parts(*theirs, manifest)) return done;
  return {};
}

Result<model::LayerRecord> LayerExchange::take(const std::string& digest) {
  if (!model::is_digest(digest)) return invalid_argument("not a digest: " + digest);
  {
    std::unique_lock lock(mutex_);
    taken_.wait(lock, [&] { return !taking_.contains(digest); });
    if (layers_.touch(digest)) return layers_.find(digest);
    taking_.insert(digest);
  }
  Result<model::LayerRecord> taken = take_new(digest).within("take layer " + digest + " from " + origin_.description());
  {
    const std::lock_guard lock(mutex_);
    taking_.erase(digest);
  }
  taken_.notify_all();
  return taken;
}

Result<model::LayerRecord> LayerExchange::take_new(const std::string& digest) {
  const std::string hex = hex_of(digest);
  DSEC_ASSIGN(const origin::LeaseHolder::Held held, lease_.hold({hex}, for_bytes(0)));
  DSEC_ASSIGN(const std::string sealed, origin::read_whole(origin_, {ObjectKind::kManifest, hex}, origin::kMaxManifestBytes, for_bytes(0)));
  DSEC_ASSIGN(const origin::Manifest manifest, origin::unseal_manifest(sealed, hex, options_.trusted_keys));
  DSEC_ASSIGN(const origin::LeaseHolder::Held parts, lease_.hold(hexes_of(manifest.data), for_bytes(0)));
  const Scratch scratch_files({scratch(hex + ".meta"), scratch(hex + ".data")});
  DSEC_TRY(take_parts(manifest, hex, scratch_files.files()));
  return layers_.publish(scratch_files.files(), manifest.record);
}

Result<void> LayerExchange::take_parts(const origin::Manifest& manifest, const std::string& hex, const ImageFiles& files) {
  DSEC_TRY(fetch_object(origin_, {ObjectKind::kMetadata, hex}, manifest.metadata_bytes, files.metadata, for_bytes(manifest.metadata_bytes)));
  DSEC_ASSIGN(const sys::Fd metadata, sys::open_at(AT_FDCWD, files.metadata, O_RDONLY));
  DSEC_ASSIGN(const std::vector<erofs::Device> devices, erofs::read_device_table(metadata.get()));
  const bool same = std::equal(devices.begin(), devices.end(), manifest.data.begin(), manifest.data.end(),
                               [](const erofs::Device& device, const origin::ManifestData& data) { return device.digest == data.hex && device.bytes() == data.bytes; });
  if (!same) return Error(ErrorCode::kDataFault, "the manifest speaks of other data than the metadata");
  DSEC_TRY(sys::replace_file(files.data, "", 0600));
  for (std::size_t i = 0; i < manifest.data.size(); ++i) {
    if (layers_.has_data(devices[i])) continue;
    const std::string path = i == 0 ? files.data : files.data + ".more";
    DSEC_ASSIGN(const Provided provided, provide_data(manifest.data[i], path));
    if (i != 0 && provided == Provided::kWhole) DSEC_TRY(layers_.adopt_data(path, devices[i]));
  }
  return {};
}

// The one place that decides how the node comes to the content of a layer: it is
// read on demand where this node can do that, else copied whole, chunk by checked chunk.
Result<LayerExchange::Provided> LayerExchange::provide_data(const origin::ManifestData& data, const std::string& path) {
  const std::uint64_t index_bytes = origin::ChunkIndex::bytes_for(data.bytes);
  DSEC_ASSIGN(const std::string bytes, origin::read_whole(origin_, {ObjectKind::kIndex, data.index_hex}, index_bytes, for_bytes(index_bytes)));
  DSEC_ASSIGN(origin::ChunkIndex index, origin::ChunkIndex::parse(bytes));
  if (index.object_bytes() != data.bytes) return Error(ErrorCode::kDataFault, "the index is of other data than the manifest says");
  if (options_.on_demand != nullptr) {
    DSEC_TRY(options_.on_demand->serve(data.hex, bytes));
    return Provided::kOnDemand;
  }
  DSEC_TRY(fetch_chunks(origin_, {ObjectKind::kData, data.hex}, std::move(index), path, for_bytes(data.bytes)));
  return Provided::kWhole;
}

}  // namespace dsec::image
