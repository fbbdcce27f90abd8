#include "image/verifier_rules.h"

#include <algorithm>
#include <span>

#include "erofs/tree_walk.h"
#include "image/layer_view.h"

namespace dsec::image {

namespace {

constexpr std::uint64_t kLeastFile = 32;  // shorter ones are in many trees that have nothing to do with it

Result<std::string> middle_of(erofs::Reader& reader, const erofs::StoredInode& node) {
  std::string text(static_cast<std::size_t>(std::min<std::uint64_t>(node.size, kMaxResidueText)), '\0');
  DSEC_ASSIGN(const std::size_t got, reader.read(node, (node.size - text.size()) / 2, std::span(text.data(), text.size())));
  text.resize(got);
  return text;
}

// Zeros are everywhere.
bool says_something(const std::string& text) { return text.size() >= kMinResidueText && text.find_first_not_of(text[0]) != std::string::npos; }

}  // namespace

Result<std::vector<ResidueRule>> verifier_rules(const LayerStore& layers, const std::string& digest, const std::string& label) {
  DSEC_ASSIGN(erofs::Reader reader, open_reader(layers, digest));
  DSEC_ASSIGN(erofs::TreeWalk walk, erofs::TreeWalk::begin(reader, "/", erofs::Depth::kAll));
  std::vector<ResidueRule> rules;
  while (true) {
    DSEC_ASSIGN(const std::optional<erofs::TreeWalk::Entry> next, walk.next());
    if (!next) return rules;
    if (!next->node.is_file() || next->node.size < kLeastFile) continue;
    DSEC_ASSIGN(std::string text, middle_of(reader, next->node).within(next->path));
    if (!says_something(text)) continue;
    if (rules.size() == kMaxResidueRules) return Error(ErrorCode::kTooLarge, label + " has more than 10000 files: a pack cannot be compared with them");
    rules.push_back({label, std::move(text)});
  }
}

}  // namespace dsec::image
