#include "erofs/content_store.h"

#include <algorithm>

namespace dsec::erofs {

namespace {

constexpr std::uint64_t kMostHeld = 1 << 20;
constexpr std::uint64_t kMostTailBytes = 256 << 20;  // of all files together: it stands in memory
constexpr std::uint64_t kWholeFrom = 32 << 10;       // files of this size and more have no tail
constexpr std::uint64_t kLongestTail = 3 << 10;      // a longer one saves less than 1 KiB of a block
constexpr std::uint32_t kNothing = 0xFFFFFFFF;

std::uint64_t blocks_of(std::uint64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes; }

std::string digest_of(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.raw();
}

// With the size: only files of one size can be equal.
std::uint64_t key_of(const Fingerprint& fingerprint, std::uint64_t bytes) { return fingerprint.value() ^ bytes; }

}  // namespace

std::uint64_t tail_bytes(std::uint64_t file_bytes, std::uint64_t room) {
  if (file_bytes >= kWholeFrom) return 0;
  const std::uint64_t tail = file_bytes % kBlockBytes;
  return tail <= std::min(kLongestTail, room) ? tail : 0;
}

ContentStore::ContentStore(int data_fd, Options options) : options_(std::move(options)), knows_digests_(options_.keep_digests), data_(data_fd), pieces_(options_.lz4_level) {
  for (std::size_t i = 0; i < options_.parents.size(); i++) {
    knows_digests_ |= !options_.parents[i].files.empty();
    for (const auto& [digest, file] : options_.parents[i].files) {
      Content content{.bytes = file.bytes,
                      .layout = !file.pieces.empty() ? Layout::kCompressed : !file.tail.empty() ? Layout::kInline : Layout::kFlat,
                      .device = static_cast<std::uint32_t>(i + 1),
                      .run = {file.block, file.blocks},
                      .tail = file.tail,
                      .pieces = file.pieces};
      if (by_digest_.emplace(digest, count()).second) add(std::move(content));
      sizes_.insert(file.bytes);
    }
  }
}

std::uint32_t ContentStore::add(Content content) {
  contents_.push_back(std::move(content));
  return static_cast<std::uint32_t>(contents_.size() - 1);
}

std::uint32_t ContentStore::refer(Content content) {
  if (tails_.bytes() + content.tail.size() > kMostTailBytes) return kNothing;
  content.tail = tails_.keep(content.tail);
  return add(std::move(content));
}

Result<void> ContentStore::append_blocks(std::string_view blocks) {
  DSEC_CHECK(blocks.size() % kBlockBytes == 0);
  return data_.append(blocks);
}

void ContentStore::begin(const FileShape& shape, std::uint64_t room) {
  shape_ = shape;
  room_ = tails_.bytes() + kBlockBytes <= kMostTailBytes ? room : 0;
  position_ = 0;
  settled_ = kNothing;
  held_.clear();
  const bool beside = tail_bytes(shape.bytes, room_) == shape.bytes;
  if (shape.bytes == 0) {
    mode_ = Mode::kEmpty;
  } else if (shape.sparse && !beside) {
    mode_ = Mode::kSparse;
    begin_sparse();
  } else if (shape.bytes < kWholeFrom || (shape.bytes <= kMostHeld && sizes_.contains(shape.bytes))) {
    mode_ = Mode::kHeld;
  } else {
    mode_ = Mode::kStreamed;
    first_block_ = next_block();
    fingerprint_ = {};
    if (knows_digests()) hash_.emplace();
  }
}

Result<void> ContentStore::stream(std::string_view bytes) {
  fingerprint_.update(bytes);
  if (hash_) hash_->update(bytes);
  if (options_.profile == Profile::kPlain) return data_.append(bytes);
  packed_.clear();
  pieces_.add(bytes, packed_);
  return data_.append(packed_);
}

Result<void> ContentStore::write(std::string_view bytes) {
  if (bytes.size() > shape_.bytes - position_) return invalid_argument("more bytes than the file's size");
  if (mode_ == Mode::kSparse) return write_sparse(bytes);
  if (bytes.empty()) return {};
  position_ += bytes.size();
  if (mode_ == Mode::kStreamed) return stream(bytes);
  if (bytes.size() == shape_.bytes) return settle_held(bytes);  // most small files come in one piece
  held_ += bytes;
  return position_ == shape_.bytes ? settle_held(held_) : Result<void>();
}

Result<void> ContentStore::skip(std::uint64_t bytes) {
  static const std::string kZeros(64 << 10, '\0');
  if (bytes > shape_.bytes - position_) return invalid_argument("more bytes than the file's size");
  if (mode_ == Mode::kSparse) return skip_sparse(bytes);
  while (bytes != 0) {
    const std::uint64_t part = std::min<std::uint64_t>(bytes, kZeros.size());
    DSEC_TRY(write(std::string_view(kZeros).substr(0, part)));
    bytes -= part;
  }
  return {};
}

Result<std::uint32_t> ContentStore::finish() {
  if (position_ != shape_.bytes) DSEC_TRY(skip(shape_.bytes - position_));
  if (mode_ == Mode::kSparse) DSEC_TRY(settle_sparse());
  if (mode_ == Mode::kStreamed) DSEC_TRY(settle_streamed());
  return settled_;
}

Result<void> ContentStore::settle_held(std::string_view bytes) {
  Content content{.bytes = bytes.size()};
  std::string_view stored = bytes;
  const std::uint64_t tail = tail_bytes(bytes.size(), room_);
  if (options_.profile == Profile::kLz4 && tail != bytes.size()) {
    packed_.clear();
    pieces_.add(bytes, packed_);
    content.pieces = pieces_.finish(packed_);
    const std::uint64_t index = sizeof(CompressedHeader) + kCompressedIndexGap + blocks_of(bytes.size()) * sizeof(ClusterIndex);
    if (tail != 0 && packed_.size() + index >= bytes.size()) content.pieces.clear();  // a tail takes less
  }
  if (!content.pieces.empty()) {
    content.layout = Layout::kCompressed;
    stored = packed_;
  } else if (tail != 0) {
    content.layout = Layout::kInline;
    content.tail = bytes.substr(bytes.size() - tail);
    stored.remove_suffix(tail);
  }
  if (stored.empty()) {
    content.tail = tails_.keep(content.tail);
    settled_ = add(std::move(content));
    return {};
  }

  const std::string digest = knows_digests() ? digest_of(bytes) : std::string();
  settled_ = find_in_parents(digest);
  if (settled_ != kNothing) return {};
  Fingerprint fingerprint;
  fingerprint.update(bytes);
  DSEC_ASSIGN(settled_, find_equal(content, key_of(fingerprint, bytes.size()), stored));
  if (settled_ != kNothing) return {};
  content.tail = tails_.keep(content.tail);
  content.run = {next_block(), static_cast<std::uint32_t>(blocks_of(stored.size()))};
  DSEC_TRY(data_.append(stored));
  DSEC_TRY(data_.pad());
  settled_ = add(std::move(content));
  remember(settled_, key_of(fingerprint, bytes.size()), digest);
  return {};
}

// What turns out to be known is cut out of the data file in the end.
Result<void> ContentStore::settle_streamed() {
  Content content{.bytes = shape_.bytes};
  if (options_.profile == Profile::kLz4) {
    packed_.clear();
    content.pieces = pieces_.finish(packed_);
    if (!content.pieces.empty()) content.layout = Layout::kCompressed;
    DSEC_TRY(data_.append(packed_));
  }
  DSEC_TRY(data_.pad());
  content.run = {first_block_, next_block() - first_block_};
  const std::string digest = hash_ ? hash_->raw() : std::string();
  hash_.reset();
  settled_ = find_in_parents(digest);
  if (settled_ != kNothing) return {};
  const std::uint64_t key = key_of(fingerprint_, shape_.bytes);
  DSEC_ASSIGN(settled_, find_equal(content, key, {}));
  if (settled_ != kNothing) return {};
  settled_ = add(std::move(content));
  remember(settled_, key, digest);
  return {};
}

std::uint32_t ContentStore::find_in_parents(const std::string& digest) const {
  const auto found = by_digest_.find(digest);
  if (found == by_digest_.end()) return kNothing;
  const Content& content = contents_[found->second];
  return content.device != 0 && content.tail.size() <= room_ ? found->second : kNothing;
}

Result<std::uint32_t> ContentStore::find_equal(const Content& content, std::uint64_t fingerprint, std::string_view stored) {
  const auto found = by_fingerprint_.find(fingerprint);
  if (found == by_fingerprint_.end()) return kNothing;
  const Content& known = contents_[found->second];
  if (known.bytes != content.bytes || known.layout != content.layout || known.pieces != content.pieces || known.tail != content.tail) return kNothing;
  const std::uint64_t at = std::uint64_t{known.run.block} * kBlockBytes;
  const auto equal = stored.empty() ? data_.same(at, std::uint64_t{content.run.block} * kBlockBytes, std::uint64_t{content.run.blocks} * kBlockBytes) : data_.holds(at, stored);
  if (!equal.ok()) return equal.error();
  return *equal ? found->second : kNothing;
}

void ContentStore::remember(std::uint32_t id, std::uint64_t fingerprint, const std::string& digest) {
  by_fingerprint_.emplace(fingerprint, id);
  sizes_.insert(contents_[id].bytes);
  if (knows_digests()) by_digest_.emplace(digest, id);
}

Result<void> ContentStore::close(const std::vector<bool>& used) {
  DSEC_TRY(data_.finish());
  std::vector<BlockRun*> live;
  std::uint64_t blocks = 0;
  for (std::size_t id = 0; id < contents_.size(); id++) {
    Content& content = contents_[id];
    if (!used[id] || content.device != 0) continue;
    if (content.layout == Layout::kChunked) {
      for (SparseRun& sparse : content.sparse) live.push_back(&sparse.run);
    } else if (content.run.blocks != 0) {
      live.push_back(&content.run);
    }
  }
  for (const BlockRun* run : live) blocks += run->blocks;
  for (auto it = by_digest_.begin(); it != by_digest_.end();) it = used[it->second] ? std::next(it) : by_digest_.erase(it);
  if (blocks == next_block()) return {};
  std::vector<BlockRun> runs;
  for (const BlockRun* run : live) runs.push_back(*run);
  DSEC_TRY(data_.keep_only(runs));
  for (std::size_t i = 0; i < live.size(); i++) *live[i] = runs[i];
  return {};
}

StoredFiles ContentStore::stored_files() const {
  DSEC_CHECK(options_.keep_digests);
  StoredFiles out;
  for (const auto& [digest, id] : by_digest_) {
    const Content& content = contents_[id];
    if (content.device == 0) out.emplace(digest, StoredFile{content.bytes, content.run.block, content.run.blocks, content.pieces, std::string(content.tail)});
  }
  return out;
}

}  // namespace dsec::erofs
