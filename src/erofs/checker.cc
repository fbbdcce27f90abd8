#include "erofs/checker.h"

#include <cstring>

#include "erofs/check_state.h"
#include "erofs/check_superblock.h"

namespace dsec::erofs {
namespace {

constexpr std::size_t kPathShown = 4096;

Result<void> check_name(CheckState& state, const StoredInode& directory, const std::string& last, std::string_view name) {
  if (name.find('\0') != std::string_view::npos || name.find('/') != std::string_view::npos)
    return state.refuse(directory.offset, "a name has a slash or a zero in it");
  if (!last.empty() && name <= last) return state.refuse(directory.offset, "names are not in order, or one occurs twice");
  return {};
}

// A name of a file that was met before.
Result<void> another_name(CheckState& state, const DirectoryBlock::Entry& entry) {
  const std::uint64_t offset = entry.nid * kSlotBytes;
  const auto known = state.links.find(entry.nid);
  if (known == state.links.end()) return state.refuse(offset, "a directory has a second name, or a file more names than links");
  if (entry.type != static_cast<std::uint8_t>(known->second.type)) return state.refuse(offset, "an entry's type is not its inode's");
  if (++known->second.found > known->second.said) return state.refuse(offset, "a file has more names than links");
  return {};
}

Result<void> check_entry(CheckState& state, const DirectoryBlock::Entry& entry) {
  const std::uint32_t parent = state.directory;
  if (entry.nid >= state.seen.size()) return state.refuse(state.directories[parent].nid * kSlotBytes, "an entry's inode lies beyond the metadata");
  if (state.seen[static_cast<std::size_t>(entry.nid)]) return another_name(state, entry);
  state.seen[static_cast<std::size_t>(entry.nid)] = true;
  DSEC_ASSIGN(const StoredInode node, state.reader.node(entry.nid));
  const EntryType type = type_of(node);
  if (entry.type != static_cast<std::uint8_t>(type)) return state.refuse(node.offset, "an entry's type is not its inode's");
  DSEC_TRY(check_node(state, node));
  if (type == EntryType::kDirectory) {
    state.directories[parent].subdirectories++;
    state.directories.push_back({.nid = entry.nid, .parent = parent, .name = state.name});
  } else if (node.links > 1) {
    state.links.emplace(entry.nid, CheckState::Links{.found = 1, .said = node.links, .directory = parent, .type = type, .offset = node.offset});
  }
  return {};
}

Result<void> check_block(CheckState& state, const StoredInode& node, const DirectoryBlock& block, std::string& last, unsigned& dots) {
  for (std::size_t i = 0; i < block.entries.size(); ++i) {
    const DirectoryBlock::Entry& entry = block.entries[i];
    state.name = std::string(entry.name);
    DSEC_TRY(check_name(state, node, last, entry.name));
    last = state.name;
    if (block.bytes[i * sizeof(DirectoryEntry) + offsetof(DirectoryEntry, reserved)] != 0) return state.refuse(node.offset, "reserved bytes of an entry are not zero");
    if (entry.name != "." && entry.name != "..") {
      DSEC_TRY(check_entry(state, entry));
      continue;
    }
    dots++;
    const CheckState::Directory& directory = state.directories[state.directory];
    const std::uint64_t wanted = entry.name == "." ? directory.nid : state.directories[directory.parent].nid;
    if (entry.nid != wanted || entry.type != static_cast<std::uint8_t>(EntryType::kDirectory))
      return state.refuse(node.offset, "'.' or '..' is another inode");
  }
  for (std::size_t at = block.names_end; at < block.bytes.size(); ++at)
    if (block.bytes[at] != 0) return state.refuse(node.offset, "bytes behind the names are not zero");
  return {};
}

Result<void> check_directory(CheckState& state, std::uint32_t index) {
  state.directory = index;
  state.name.clear();
  DSEC_ASSIGN(const StoredInode node, state.reader.node(state.directories[index].nid));
  std::string last;
  unsigned dots = 0;
  for (std::uint64_t i = 0; i < node.blocks(); ++i) {
    DSEC_ASSIGN(const DirectoryBlock block, state.reader.directory_block(node, i));
    DSEC_TRY(check_block(state, node, block, last, dots));
  }
  state.name.clear();
  if (dots != 2) return state.refuse(node.offset, "a directory lacks '.' or '..'");
  if (node.links != state.directories[index].subdirectories + std::uint64_t{2}) return state.refuse(node.offset, "the number of a directory's links is wrong");
  return {};
}

Result<void> walk(CheckState& state) {
  const std::uint64_t root = state.reader.superblock().root_nid;
  if (root >= state.seen.size()) return state.refuse(kSuperblockOffset, "the root lies beyond the metadata");
  state.directories.push_back({.nid = root, .parent = 0, .name = ""});
  state.seen[static_cast<std::size_t>(root)] = true;
  DSEC_ASSIGN(const StoredInode node, state.reader.root());
  if (!node.is_directory()) return state.refuse(node.offset, "the root is no directory");
  DSEC_TRY(check_node(state, node));
  for (std::uint32_t i = 0; i < state.directories.size(); ++i) DSEC_TRY(check_directory(state, i));
  state.directory = 0;
  for (const auto& [nid, links] : state.links)
    if (links.found != links.said) return state.refuse_at(links.directory, "", links.offset, "a file has fewer names than links");
  if (state.facts.inodes != state.reader.superblock().inodes) return state.refuse(kSuperblockOffset, "the number of inodes is wrong");
  return {};
}

Result<void> check_occupancy(CheckState& state, Source& metadata) {
  DSEC_ASSIGN(const std::optional<Occupancy::Clash> clash, state.occupancy.find_clash(metadata));
  if (clash) return state.refuse_at(clash->owner, "", clash->offset, std::string(clash->what));
  return {};
}

// A source that two may read in turn.
class Borrowed final : public Source {
 public:
  explicit Borrowed(Source& source) : source_(source) {}
  std::uint64_t size() const override { return source_.size(); }
  Result<void> read(std::uint64_t offset, std::span<char> into) override { return source_.read(offset, into); }

 private:
  Source& source_;
};

// What a failed step means: an unsound image, or bytes that could not be read.
Result<Verdict> verdict_of(Error error, std::optional<Problem> problem, std::uint64_t offset, ImageFacts facts) {
  if (error.error_number() != 0) return error;
  if (!problem) problem = Problem{.offset = offset, .path = "", .what = error.message()};
  return Verdict{.problem = std::move(problem), .facts = std::move(facts)};
}

}  // namespace

std::string Problem::text() const { return (path.empty() ? "" : path + ": ") + what + " (byte " + std::to_string(offset) + ")"; }

Error CheckState::refuse(std::uint64_t offset, std::string what) { return refuse_at(directory, name, offset, std::move(what)); }

Error CheckState::refuse_at(std::uint32_t in_directory, std::string entry, std::uint64_t offset, std::string what) {
  problem = Problem{.offset = offset, .path = path_of(in_directory, entry), .what = what};
  return Error(ErrorCode::kDataFault, std::move(what));
}

std::string CheckState::path_of(std::uint32_t index, const std::string& entry) const {
  std::string path = entry.empty() ? "" : "/" + entry;
  for (; index < directories.size() && directories[index].parent != index && path.size() < kPathShown; index = directories[index].parent)
    path.insert(0, "/" + directories[index].name);
  return path.empty() ? "/" : path;
}

Result<void> CheckState::take(std::uint64_t offset, std::uint64_t begin, std::uint64_t end) {
  if (end > reader.metadata_bytes()) return refuse(offset, "it reaches beyond the metadata");
  if (!occupancy.add(Occupancy::Kind::kStructure, begin, end, directory)) return refuse(offset, "structures overlap");
  return {};
}

Result<Verdict> check_image(std::unique_ptr<Source> metadata, const std::vector<std::uint64_t>& device_bytes, const CheckLimits& limits) {
  if (metadata->size() > limits.metadata_bytes)
    return Verdict{.problem = Problem{.offset = limits.metadata_bytes, .path = "", .what = "the metadata is longer than the limit"}, .facts = {}};
  std::string first_block(kBlockBytes, '\0');
  if (Result<void> read = metadata->read(0, first_block); !read.ok()) return verdict_of(std::move(read).error(), {}, 0, {});
  Result<Reader> reader = Reader::open(std::make_unique<Borrowed>(*metadata));
  if (!reader.ok()) return verdict_of(std::move(reader).error(), {}, kSuperblockOffset, {});

  CheckState state(std::move(reader).value(), limits);
  state.facts.devices = state.reader.devices();
  if (auto problem = check_superblock(state.reader, first_block, device_bytes, state.occupancy)) return Verdict{.problem = std::move(problem), .facts = state.facts};
  if (state.reader.superblock().compression != 0) {
    Lz4Settings settings{};
    std::memcpy(&settings, first_block.data() + kSuperblockOffset + sizeof(Superblock), sizeof settings);
    state.piece_blocks = settings.maximal_piece_blocks;
  }
  Result<void> done = walk(state);
  if (done.ok()) done = check_occupancy(state, *metadata);
  if (!done.ok()) {
    const std::uint64_t offset = state.directories.empty() ? 0 : state.directories[state.directory].nid * kSlotBytes;
    if (!state.problem) state.problem = Problem{.offset = offset, .path = state.path_of(state.directory, state.name), .what = done.error().message()};
    return verdict_of(std::move(done).error(), state.problem, offset, state.facts);
  }
  return Verdict{.problem = {}, .facts = std::move(state.facts)};
}

}  // namespace dsec::erofs
