// Hostile metadata against checker and reader. What the checker accepts must be
// readable to the last byte; what it refuses may give errors and nothing worse.
//
// An input is either metadata as it is (first byte 0xff), or changes to an
// image that is sound: triples of an offset and a byte. The checksum is made
// right again, for it would hide all else.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "erofs/checker.h"
#include "erofs/hand_made_image.h"
#include "erofs/reader.h"

namespace {

using namespace dsec;
using namespace dsec::erofs;

constexpr std::size_t kInodesRead = 2000;      // of an image that was refused, and may be endless
constexpr std::uint64_t kExtentsRead = 2000;   // of one file, likewise

void require(bool holds) {
  if (!holds) __builtin_trap();
}

class Walk {
 public:
  Walk(Reader& reader, bool sound) : reader_(reader), sound_(sound) {}

  void run() {
    std::vector<std::uint64_t> waiting = {reader_.superblock().root_nid};
    std::set<std::uint64_t> seen;
    while (!waiting.empty() && (sound_ || seen.size() < kInodesRead)) {
      const std::uint64_t nid = waiting.back();
      waiting.pop_back();
      if (seen.insert(nid).second) inode(nid, waiting);
    }
  }

 private:
  template <typename T>
  bool good(const Result<T>& result) {
    require(result.ok() || !sound_);
    return result.ok();
  }

  void inode(std::uint64_t nid, std::vector<std::uint64_t>& waiting) {
    const Result<StoredInode> node = reader_.node(nid);
    if (!good(node)) return;
    good(reader_.attributes(*node));
    if (node->is_symlink()) good(reader_.link_target(*node));
    if (node->is_file()) content(*node);
    for (std::uint64_t i = 0; node->is_directory() && i < node->blocks(); ++i) {
      const Result<DirectoryBlock> block = reader_.directory_block(*node, i);
      if (!good(block)) return;
      for (const DirectoryBlock::Entry& entry : block->entries) waiting.push_back(entry.nid);
      if (sound_) require(lookup(*node, block->entries.back().name));
    }
  }

  bool lookup(const StoredInode& directory, std::string_view name) {
    DirectoryBlock found;
    const auto entry = reader_.find(directory, name, found);
    return entry.ok() && entry->has_value();
  }

  // The data file's bytes are not the checker's concern, so what LZ4 says of
  // them is not either; that they are there is.
  void content(const StoredInode& node) {
    std::uint64_t extents = 0;
    for (std::uint64_t at = 0; at < node.size && (sound_ || extents < kExtentsRead); ++extents) {
      const Result<Extent> extent = reader_.extent(node, at);
      if (!good(extent)) return;
      require(extent->length > 0 && extent->at <= at && extent->at + extent->length > at);
      if (extent->kind != Extent::Kind::kHole && extent->stored <= bytes_.size())
        good(reader_.read_source(extent->source, extent->offset, std::span(bytes_).first(static_cast<std::size_t>(extent->stored))));
      (void)reader_.read(node, at, std::span(bytes_).first(100));
      at = extent->at + extent->length;
    }
  }

  Reader& reader_;
  const bool sound_;
  std::string bytes_ = std::string(1 << 20, '\0');
};

std::string metadata_of(std::string_view input, const test::HandMadeImage& base) {
  if (!input.empty() && input[0] == '\xff') return std::string(input.substr(1));
  std::string metadata = base.metadata();
  for (std::size_t i = 0; i + 3 <= input.size(); i += 3) {
    const std::size_t offset = static_cast<unsigned char>(input[i]) << 8 | static_cast<unsigned char>(input[i + 1]);
    metadata[offset % metadata.size()] = input[i + 2];
  }
  return metadata;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const test::HandMadeImage base = test::rich_image();
  std::string metadata = metadata_of(std::string_view(reinterpret_cast<const char*>(data), size), base);
  if (metadata.size() >= kBlockBytes) test::fix_checksum(metadata);

  const Result<Verdict> verdict = check_image(std::make_unique<MemorySource>(metadata), {base.data().size()});
  require(verdict.ok());
  std::vector<std::unique_ptr<Source>> devices;
  devices.push_back(std::make_unique<MemorySource>(base.data()));
  Result<Reader> reader = Reader::open(std::make_unique<MemorySource>(metadata), std::move(devices));
  require(reader.ok() || !verdict->sound());
  if (reader.ok()) Walk(*reader, verdict->sound()).run();
  return 0;
}
