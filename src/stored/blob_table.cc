#include "stored/blob_table.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "base/log.h"
#include "stored/prefetch_verdict.h"
#include "sys/file.h"

namespace dsec::stored {

namespace {

constexpr std::size_t kHexDigits = 64;
constexpr std::size_t kNodeDigits = 16;
constexpr std::size_t kMaxIndexBytes = 1 << 30;

bool is_hex(std::string_view text) {
  return text.size() == kHexDigits && std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// "" when `name` is not <hex><suffix>.
std::string hex_of(const std::string& name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return "";
  const std::string hex = name.substr(0, name.size() - suffix.size());
  return is_hex(hex) ? hex : "";
}

}  // namespace

BlobTable::BlobTable(StoredFolders folders, origin::Origin& origin, CacheBudget& budget, origin::ReadPatience patience, Duration trace_window)
    : folders_(std::move(folders)), origin_(origin), budget_(budget), patience_(patience), trace_window_(trace_window) {}

std::uint64_t BlobTable::node_of(const std::string& hex) {
  std::uint64_t node = 0;
  std::from_chars(hex.data(), hex.data() + kNodeDigits, node, 16);
  return node;
}

Result<void> BlobTable::load() {
  DSEC_ASSIGN(const std::vector<std::string> names, sys::list_directory(folders_.state));
  for (const std::string& name : names) {
    if (const std::string judged = hex_of(name, kVerdictSuffix); !judged.empty() && ::access(index_path(judged).c_str(), F_OK) != 0)
      ::unlink((folders_.state + "/" + name).c_str());
    const std::string hex = hex_of(name, ".chunks");
    if (hex.empty()) continue;
    const auto blob = find(hex);
    if (blob.ok()) continue;
    if (blob.error().code() == ErrorCode::kNotFound) ::unlink(chunks_path(hex).c_str());
    else log_warning("a cached object cannot be opened", {{"data", hex}, {"why", blob.error().message()}});
  }
  return {};
}

Result<std::shared_ptr<Blob>> BlobTable::find(const std::string& hex) {
  if (!is_hex(hex)) return Error(ErrorCode::kNotFound, "no object is called so");
  const std::lock_guard lock(mutex_);
  const std::uint64_t node = node_of(hex);
  if (const auto found = blobs_.find(node); found != blobs_.end()) {
    if (found->second->hex() == hex) return found->second;
    return Error(ErrorCode::kInternal, hex + " and " + found->second->hex() + " cannot be served by one node");
  }
  DSEC_ASSIGN(std::shared_ptr<Blob> blob, open(hex));
  if (node <= 1) return Error(ErrorCode::kInternal, hex + " cannot be served: its number is taken");
  blobs_[node] = blob;
  for (const std::uint64_t chunk : blob->stored_chunks()) budget_.added(blob, chunk);
  return blob;
}

Result<std::shared_ptr<Blob>> BlobTable::open(const std::string& hex) const {
  DSEC_ASSIGN(const std::string bytes, sys::read_file(index_path(hex), kMaxIndexBytes));
  DSEC_ASSIGN(origin::ChunkIndex index, origin::ChunkIndex::parse(bytes));
  const std::uint64_t size = index.object_bytes();
  auto reader = std::make_unique<origin::ChunkReader>(origin_, origin::ObjectName{origin::ObjectKind::kData, hex}, std::move(index), patience_);
  // A crash can have left both: then the whole one counts.
  if (!folders_.layers.empty() && ::access(whole_path(hex).c_str(), F_OK) == 0) {
    DSEC_ASSIGN(CacheFile whole, CacheFile::open_complete(whole_path(hex), size));
    ::unlink(chunks_path(hex).c_str());
    return std::make_shared<Blob>(hex, std::move(reader), std::move(whole), true);
  }
  DSEC_ASSIGN(CacheFile file, CacheFile::open(chunks_path(hex), size));
  return std::make_shared<Blob>(hex, std::move(reader), std::move(file), false, trace_window_);
}

Result<std::shared_ptr<Blob>> BlobTable::find_node(std::uint64_t node) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = blobs_.find(node); found != blobs_.end()) return found->second;
  }
  // Told to the kernel by a process before this one.
  DSEC_ASSIGN(const std::vector<std::string> names, sys::list_directory(folders_.state));
  for (const std::string& name : names)
    if (const std::string hex = hex_of(name, ".index"); !hex.empty() && node_of(hex) == node) return find(hex);
  return Error(ErrorCode::kNotFound, "no object has this number");
}

void BlobTable::hand_over(const std::shared_ptr<Blob>& blob) {
  if (folders_.layers.empty()) return;
  const auto named = blob->name_whole(whole_path(blob->hex()));
  if (named.ok()) {
    budget_.forget(blob.get());
    ::unlink(chunks_path(blob->hex()).c_str());
    log_info("an object is whole on this node", {{"data", blob->hex()}});
  } else if (named.error().code() != ErrorCode::kConflict) {
    log_error("a whole object could not be handed over", {{"data", blob->hex()}, {"why", named.error().message()}});
  }
}

void BlobTable::drop_removed() {
  const std::lock_guard lock(mutex_);
  std::erase_if(blobs_, [this](const auto& item) {
    const std::string& hex = item.second->hex();
    if (::access(index_path(hex).c_str(), F_OK) == 0) return false;
    budget_.forget(item.second.get());
    ::unlink(chunks_path(hex).c_str());
    ::unlink((folders_.state + "/" + hex + kVerdictSuffix).c_str());
    return true;
  });
}

std::map<std::string, BlobCounts> BlobTable::counts() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, BlobCounts> out;
  for (const auto& [node, blob] : blobs_) out[blob->hex()] = blob->counts();
  return out;
}

}  // namespace dsec::stored
