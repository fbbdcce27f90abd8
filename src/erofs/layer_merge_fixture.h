// Layers in memory, their merge, and what is in it, for tests.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "erofs/checker.h"
#include "erofs/digest.h"
#include "erofs/layer_merge.h"
#include "erofs/tree_walk.h"
#include "sys/fd.h"

namespace dsec::erofs::test {

// An image in memory: a layer by itself, what a merge makes, or what it is compared with.
struct Image {
  sys::Fd metadata{::memfd_create("metadata", MFD_CLOEXEC)};
  sys::Fd data{::memfd_create("data", MFD_CLOEXEC)};
  std::unique_ptr<Writer> writer;
  WrittenImage written;

  explicit Image(WriterOptions options = {.overlaps = Overlaps::kLayer}) : writer(std::make_unique<Writer>(metadata.get(), data.get(), std::move(options))) {}
  void file(const std::string& path, const std::string& content, const EntryMeta& meta = {.mode = 0644}) {
    ASSERT_TRUE(writer->begin_file(path, meta, {.bytes = content.size()}).ok());
    ASSERT_TRUE(writer->write(content).ok());
    ASSERT_TRUE(writer->finish_file().ok());
  }
  void directory(const std::string& path, const EntryMeta& meta = {}) { ASSERT_TRUE(writer->make_directory(path, meta).ok()); }
  void link(const std::string& path, const std::string& target) { ASSERT_TRUE(writer->make_symlink(path, target, {}).ok()); }
  void hide(const std::string& path) { ASSERT_TRUE(writer->make_whiteout(path).ok()); }
  void finish(std::int64_t unstated_seconds = 0) {
    Result<WrittenImage> done = writer->finish({.unstated_seconds = unstated_seconds});
    ASSERT_TRUE(done.ok()) << done.error().message();
    written = *done;
    const Verdict verdict = check_image(FileSource::open(sys::Fd(::dup(metadata.get()))).value()).value();
    ASSERT_TRUE(verdict.sound()) << verdict.problem->text();
  }
  std::string digest() const { return digest_of_file(metadata.get()).value(); }
};

inline std::string digest_text(const DeviceSlot& slot) { return std::string(slot.tag, sizeof slot.tag); }

class LayerMergeTest : public testing::Test {
 protected:
  Reader reader(const Image& image, const std::vector<const Image*>& others = {}) {
    Reader alone = Reader::open(FileSource::open(sys::Fd(::dup(image.metadata.get()))).value()).value();
    std::vector<std::unique_ptr<Source>> devices;
    std::vector<const Image*> known = others;
    known.push_back(&image);
    for (const DeviceSlot& slot : alone.devices()) {
      for (const Image* one : known) {
        if (one->written.data_digest != digest_text(slot)) continue;
        devices.push_back(FileSource::open(sys::Fd(::dup(one->data.get()))).value());
        break;
      }
    }
    Result<Reader> opened = Reader::open(FileSource::open(sys::Fd(::dup(image.metadata.get()))).value(), std::move(devices));
    EXPECT_TRUE(opened.ok()) << opened.error().message();
    return std::move(opened).value();
  }
  // The layers over one another. Nothing is copied unless a test says so.
  Result<MergeCounts> merge(const std::vector<const Image*>& layers, Image& out, MergeOptions options = {.at = "", .copied_below_bytes = 0}) {
    std::vector<Reader> readers;
    for (const Image* layer : layers) readers.push_back(reader(*layer));
    std::vector<Reader*> pointers;
    for (Reader& one : readers) pointers.push_back(&one);
    out.writer = std::make_unique<Writer>(out.metadata.get(), out.data.get(), WriterOptions{.overlaps = Overlaps::kReplace, .profile = Profile::kLz4, .parents = data_of(pointers)});
    Result<MergeCounts> counts = merge_layers(pointers, options, *out.writer);
    if (counts.ok()) out.finish(counts->newest_seconds);
    return counts;
  }
  // Everything but where things lie, by path; names of one inode say so.
  static std::map<std::string, std::string> contents(Reader& reader) {
    std::map<std::string, std::string> out;
    std::map<std::uint64_t, std::string> first;
    TreeWalk walk = TreeWalk::begin(reader, "/", Depth::kAll).value();
    for (;;) {
      const std::optional<TreeWalk::Entry> entry = walk.next().value();
      if (!entry) return out;
      const StoredInode& node = entry->node;
      std::string text;
      for (const std::uint64_t number : {std::uint64_t{node.mode}, node.is_directory() ? 0 : node.size, std::uint64_t{node.uid}, std::uint64_t{node.gid}, std::uint64_t{node.links},
                                         static_cast<std::uint64_t>(node.seconds), std::uint64_t{node.nanoseconds}})
        text += std::to_string(number) + " ";
      const std::vector<Attribute> attributes = reader.attributes(node).value();
      for (const Attribute& attribute : attributes) text += attribute.name + "=" + attribute.value + " ";
      if (node.is_symlink()) text += "-> " + reader.link_target(node).value();
      if (node.is_file()) {
        std::string bytes(static_cast<std::size_t>(node.size), '\0');
        EXPECT_EQ(reader.read(node, 0, bytes).value(), bytes.size());
        Sha256 hash;
        hash.update(bytes);
        text += hash.hex();
      }
      text += " as " + first.emplace(node.nid, entry->path).first->second;
      out[entry->path] = text;
    }
  }
  static std::string names(Reader& reader) {
    std::string out;
    for (const auto& [path, text] : contents(reader)) out += (out.empty() ? "" : " ") + path.substr(1);
    return out;
  }
  static std::string content_of(Reader& reader, const std::string& path) {
    const Result<StoredInode> node = reader.lookup(path);
    if (!node.ok()) return "<" + node.error().message() + ">";
    std::string bytes(static_cast<std::size_t>(node->size), '\0');
    EXPECT_EQ(reader.read(*node, 0, bytes).value(), bytes.size());
    return bytes;
  }
};

}  // namespace dsec::erofs::test
