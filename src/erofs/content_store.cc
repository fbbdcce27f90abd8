#include "erofs/content_store.h"

#include <algorithm>

namespace dsec::erofs {

namespace {

constexpr std::uint64_t kMostHeld = 1 << 20;
constexpr std::uint64_t kMostInlineBytes = 256 << 20;  // of all files together: it stands in memory
constexpr std::uint64_t kMostChunks = 1 << 16;         // of one sparse file

std::uint8_t chunk_bits_for(std::uint64_t bytes) {
  std::uint8_t bits = 0;
  while ((bytes >> (kBlockBits + bits)) > kMostChunks) bits++;
  return bits;
}

}  // namespace

ContentStore::ContentStore(int data_fd, Options options) : options_(std::move(options)), data_(data_fd), pieces_(data_, options_.lz4_level) {
  for (std::size_t i = 0; i < options_.parents.size(); i++) {
    for (const auto& [digest, file] : options_.parents[i].files) {
      Content content{.bytes = file.bytes,
                      .layout = file.pieces.empty() ? Layout::kFlat : Layout::kCompressed,
                      .device = static_cast<std::uint32_t>(i + 1),
                      .run = {file.block, file.blocks},
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

void ContentStore::begin(const FileShape& shape, bool may_inline) {
  shape_ = shape;
  position_ = 0;
  held_.clear();
  hash_ = Sha256();
  if (shape.bytes == 0) {
    mode_ = Mode::kEmpty;
  } else if (may_inline && inline_.size() + shape.bytes <= kMostInlineBytes) {
    mode_ = Mode::kInline;
  } else if (shape.sparse) {
    mode_ = Mode::kSparse;
    chunk_bits_ = chunk_bits_for(shape.bytes);
    in_run_ = false;
    runs_.clear();
  } else if (shape.bytes <= kMostHeld && sizes_.contains(shape.bytes)) {
    mode_ = Mode::kHeld;
  } else {
    mode_ = Mode::kStreamed;
    first_block_ = next_block();
  }
}

Result<void> ContentStore::put(std::string_view bytes) {
  return options_.profile == Profile::kLz4 ? pieces_.add(bytes) : data_.append(bytes);
}

Result<void> ContentStore::write(std::string_view bytes) {
  if (bytes.size() > shape_.bytes - position_) return invalid_argument("more bytes than the file's size");
  if (mode_ == Mode::kSparse) return write_sparse(bytes);
  position_ += bytes.size();
  if (mode_ == Mode::kInline || mode_ == Mode::kHeld) {
    held_ += bytes;
    return {};
  }
  hash_.update(bytes);
  return put(bytes);
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

// Data in a chunk makes the whole chunk data.
Result<void> ContentStore::write_sparse(std::string_view bytes) {
  if (bytes.empty()) return {};
  if (!in_run_) {
    const std::uint64_t start = position_ / chunk_bytes() * chunk_bytes();
    runs_.push_back({static_cast<std::uint32_t>(start / chunk_bytes()), {next_block(), 0}});
    in_run_ = true;
    DSEC_TRY(data_.append_zeros(position_ - start));
  }
  position_ += bytes.size();
  return data_.append(bytes);
}

Result<void> ContentStore::skip_sparse(std::uint64_t bytes) {
  const std::uint64_t target = position_ + bytes;
  if (in_run_) {
    const std::uint64_t chunk_end = (position_ + chunk_bytes() - 1) / chunk_bytes() * chunk_bytes();
    DSEC_TRY(data_.append_zeros(std::min(target, chunk_end) - position_));
    if (target >= chunk_end) end_sparse_run();
  }
  position_ = target;
  return {};
}

void ContentStore::end_sparse_run() {
  BlockRun& run = runs_.back().run;
  run.blocks = next_block() - run.block;
  in_run_ = false;
}

Result<std::uint32_t> ContentStore::finish() {
  if (position_ != shape_.bytes) DSEC_TRY(skip(shape_.bytes - position_));
  switch (mode_) {
    case Mode::kEmpty: return std::uint32_t{0xFFFFFFFF};
    case Mode::kInline: return finish_inline();
    case Mode::kSparse: return finish_sparse();
    case Mode::kHeld:
    case Mode::kStreamed: return finish_data();
  }
  die("unknown file mode");
}

Result<std::uint32_t> ContentStore::finish_inline() {
  Content content{.bytes = shape_.bytes, .layout = Layout::kInline, .inline_offset = inline_.size()};
  inline_ += held_;
  return add(std::move(content));
}

Result<std::uint32_t> ContentStore::finish_sparse() {
  if (in_run_) {
    DSEC_TRY(data_.pad());
    end_sparse_run();
  }
  return add({.bytes = shape_.bytes, .layout = Layout::kChunked, .chunk_bits = chunk_bits_, .sparse = std::move(runs_)});
}

Result<std::uint32_t> ContentStore::finish_data() {
  if (mode_ == Mode::kHeld) hash_.update(held_);
  const std::string digest = hash_.raw();
  const auto known = by_digest_.find(digest);
  if (mode_ == Mode::kHeld && known == by_digest_.end()) {
    first_block_ = next_block();
    DSEC_TRY(put(held_));
  }
  Content content{.bytes = shape_.bytes};
  if (options_.profile == Profile::kLz4) {
    DSEC_ASSIGN(content.pieces, pieces_.finish());
    if (!content.pieces.empty()) content.layout = Layout::kCompressed;
  }
  DSEC_TRY(data_.pad());
  if (known != by_digest_.end()) return known->second;  // what was streamed is cut out in the end
  content.run = {first_block_, next_block() - first_block_};
  const std::uint32_t id = add(std::move(content));
  by_digest_.emplace(digest, id);
  sizes_.insert(shape_.bytes);
  return id;
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
    } else if (content.layout != Layout::kInline) {
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
  StoredFiles out;
  for (const auto& [digest, id] : by_digest_) {
    const Content& content = contents_[id];
    if (content.device == 0) out.emplace(digest, StoredFile{content.bytes, content.run.block, content.run.blocks, content.pieces});
  }
  return out;
}

}  // namespace dsec::erofs
