// What must not be left in a layer that is packed from a sandbox: canaries of hidden
// tests, keys, tokens; found by content.
//
// Each rule is a text that is looked for in every byte of every file, in names,
// targets of links and attributes. What is compressed, encoded or cut up inside is
// not found: this stops an accident, not a smuggler.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "erofs/directory_input.h"

namespace dsec::image {

struct ResidueRule {
  std::string name;  // is told; the text never is
  std::string text;
  bool operator==(const ResidueRule&) const = default;
};

inline constexpr std::size_t kMinResidueText = 8;
inline constexpr std::size_t kMaxResidueText = 4096;
inline constexpr std::size_t kMaxResidueRules = 10'000;

Result<void> check_residue_rule(const ResidueRule& rule);
// Lines "NAME TEXT"; TEXT goes to the end of the line. Empty ones and those that
// begin with # are left out.
Result<std::vector<ResidueRule>> parse_residue_rules(std::string_view text);
// Of the operator. kInvalidArgument for a file that others than its owner may read.
Result<std::vector<ResidueRule>> read_residue_rules(const std::string& path);

struct ResidueFinding {
  std::string path;
  std::string rule;  // name
  bool operator==(const ResidueFinding&) const = default;
};

class ResidueScan final : public erofs::ContentWatch {
 public:
  // Findings at paths that match one of `allow` (erofs/path_patterns.h) are none.
  ResidueScan(std::vector<ResidueRule> rules, std::vector<std::string> allow);

  void text(std::string_view path, std::string_view text) override;
  void begin(std::string_view path) override;
  void bytes(std::string_view piece) override;
  void hole() override { carried_.clear(); }

  // One for each path, in which no rule's text stands; the first 100.
  const std::vector<ResidueFinding>& findings() const { return findings_; }

 private:
  void search(std::string_view text);
  void check_at(std::string_view text, std::size_t window);
  void found(const ResidueRule& rule);

  const std::vector<ResidueRule> rules_;
  const std::vector<std::string> allow_;
  // Wu and Manber's search: a window of the shortest rule's length moves on by as
  // much as its last two bytes allow; where that is nothing, rules may begin.
  std::size_t window_ = 0;
  std::size_t longest_ = 0;
  std::vector<std::uint8_t> shift_;  // by two bytes
  std::vector<std::vector<std::uint32_t>> ending_;  // rules whose window ends with these two bytes
  std::string path_;
  std::string carried_;  // the end of the last piece, where a text may have begun
  std::set<std::string> told_;
  std::vector<ResidueFinding> findings_;
};

}  // namespace dsec::image
