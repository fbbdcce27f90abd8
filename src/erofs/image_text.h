// All of an image as text, inode by inode, for tests that compare.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/encoding.h"
#include "erofs/reader.h"

namespace dsec::erofs::test {

// What stands in a directory, or a file's bytes.
inline Result<std::string> body_text(Reader& reader, const StoredInode& node) {
  std::string text;
  if (node.is_symlink()) return reader.link_target(node);
  if (node.is_file()) {
    text.resize(static_cast<std::size_t>(node.size));
    const Result<std::size_t> got = reader.read(node, 0, text);
    // A size that does not fit what the data file holds is found by unpacking alone.
    if (!got.ok() && node.layout == Layout::kCompressed) return std::string("does not unpack");
    if (!got.ok()) return got.error();
    text.resize(*got);
  }
  for (std::uint64_t i = 0; node.is_directory() && i < node.blocks(); ++i) {
    DSEC_ASSIGN(const DirectoryBlock block, reader.directory_block(node, i));
    for (const DirectoryBlock::Entry& entry : block.entries)
      text += std::string(entry.name) + "=" + std::to_string(entry.nid) + ":" + std::to_string(entry.type) + "\n";
  }
  return text;
}

inline Result<std::string> inode_text(Reader& reader, const StoredInode& node) {
  std::string text;
  for (const std::uint64_t number : {std::uint64_t{node.mode}, node.size, std::uint64_t{node.uid}, std::uint64_t{node.gid}, std::uint64_t{node.links},
                                     static_cast<std::uint64_t>(node.seconds), std::uint64_t{node.nanoseconds}})
    text += std::to_string(number) + " ";
  DSEC_ASSIGN(const std::vector<Attribute> attributes, reader.attributes(node));
  for (const Attribute& attribute : attributes) text += attribute.name + "=" + to_hex(attribute.value) + " ";
  DSEC_ASSIGN(const std::string body, body_text(reader, node));
  return text + "\n" + body;
}

// Everything that names lead to, by nid.
inline Result<std::map<std::uint64_t, std::string>> inode_texts(Reader& reader) {
  std::map<std::uint64_t, std::string> texts;
  std::vector<std::uint64_t> waiting = {reader.superblock().root_nid};
  while (!waiting.empty()) {
    const std::uint64_t nid = waiting.back();
    waiting.pop_back();
    if (texts.contains(nid)) continue;
    DSEC_ASSIGN(const StoredInode node, reader.node(nid));
    DSEC_ASSIGN(texts[nid], inode_text(reader, node));
    for (std::uint64_t i = 0; node.is_directory() && i < node.blocks(); ++i) {
      DSEC_ASSIGN(const DirectoryBlock block, reader.directory_block(node, i));
      for (const DirectoryBlock::Entry& entry : block.entries) waiting.push_back(entry.nid);
    }
  }
  return texts;
}

}  // namespace dsec::erofs::test
