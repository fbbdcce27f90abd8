#include "image/residue.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "erofs/path_patterns.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

constexpr std::size_t kMaxFindings = 100;
constexpr std::size_t kMaxRulesFile = 8 << 20;
constexpr std::size_t kMaxRuleName = 64;

// Of the two bytes that end at text[end - 1].
std::size_t pair_before(std::string_view text, std::size_t end) {
  return static_cast<std::size_t>(static_cast<unsigned char>(text[end - 2])) << 8 | static_cast<unsigned char>(text[end - 1]);
}

}  // namespace

Result<void> check_residue_rule(const ResidueRule& rule) {
  const auto fits = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.'; };
  if (rule.name.empty() || rule.name.size() > kMaxRuleName || !std::all_of(rule.name.begin(), rule.name.end(), fits))
    return invalid_argument("a residue rule's name is 1 to 64 of A-Z a-z 0-9 . _ -");
  if (rule.text.size() < kMinResidueText || rule.text.size() > kMaxResidueText) return invalid_argument("the text of residue rule " + rule.name + " is not 8 to 4096 bytes long");
  return {};
}

Result<std::vector<ResidueRule>> parse_residue_rules(std::string_view text) {
  std::vector<ResidueRule> rules;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    number++;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.front() == '#') continue;
    const std::size_t space = line.find_first_of(" \t");
    const std::size_t begin = space == std::string_view::npos ? space : line.find_first_not_of(" \t", space);
    if (begin == std::string_view::npos) return invalid_argument("line " + std::to_string(number) + ": NAME TEXT");
    rules.push_back({std::string(line.substr(0, space)), std::string(line.substr(begin))});
    DSEC_TRY(check_residue_rule(rules.back()).within("line " + std::to_string(number)));
    if (rules.size() > kMaxResidueRules) return Error(ErrorCode::kTooLarge, "more than 10000 residue rules");
  }
  return rules;
}

Result<std::vector<ResidueRule>> read_residue_rules(const std::string& path) {
  struct stat st{};
  if (::stat(path.c_str(), &st) != 0) return errno_error("read " + path, errno);
  if ((st.st_mode & 077) != 0) return invalid_argument(path + " holds secrets and may be read by others: chmod 600");
  DSEC_ASSIGN(const std::string text, sys::read_file(path, kMaxRulesFile));
  return parse_residue_rules(text).within(path);
}

ResidueScan::ResidueScan(std::vector<ResidueRule> rules, std::vector<std::string> allow) : rules_(std::move(rules)), allow_(std::move(allow)) {
  if (rules_.empty()) return;
  window_ = kMaxResidueText;
  for (const ResidueRule& rule : rules_) {
    window_ = std::min(window_, rule.text.size());
    longest_ = std::max(longest_, rule.text.size());
  }
  const std::size_t farthest = std::min<std::size_t>(window_ - 1, 255);
  shift_.assign(65536, static_cast<std::uint8_t>(farthest));
  ending_.resize(65536);
  for (std::uint32_t i = 0; i < rules_.size(); i++) {
    for (std::size_t end = 2; end <= window_; end++) {
      std::uint8_t& shift = shift_[pair_before(rules_[i].text, end)];
      shift = static_cast<std::uint8_t>(std::min<std::size_t>(shift, window_ - end));
    }
    ending_[pair_before(rules_[i].text, window_)].push_back(i);
  }
}

void ResidueScan::text(std::string_view path, std::string_view text) {
  begin(path);
  search(text);
}

void ResidueScan::begin(std::string_view path) {
  path_ = path;
  carried_.clear();
}

void ResidueScan::bytes(std::string_view piece) {
  if (rules_.empty()) return;
  const std::size_t overlap = longest_ - 1;
  // Across the seam first, which is short; then the piece as it lies.
  if (!carried_.empty()) {
    carried_.append(piece.substr(0, overlap));
    search(carried_);
  }
  search(piece);
  if (piece.size() >= overlap) {
    carried_ = piece.substr(piece.size() - overlap);
  } else {
    if (carried_.empty()) carried_ = piece;
    if (carried_.size() > overlap) carried_.erase(0, carried_.size() - overlap);
  }
}

void ResidueScan::search(std::string_view text) {
  if (rules_.empty()) return;
  for (std::size_t end = window_; end <= text.size();) {
    const std::size_t shift = shift_[pair_before(text, end)];
    if (shift == 0) check_at(text, end - window_);
    end += std::max<std::size_t>(shift, 1);
  }
}

void ResidueScan::check_at(std::string_view text, std::size_t window) {
  for (const std::uint32_t i : ending_[pair_before(text, window + window_)]) {
    if (text.substr(window).starts_with(rules_[i].text)) found(rules_[i]);
  }
}

void ResidueScan::found(const ResidueRule& rule) {
  if (findings_.size() >= kMaxFindings || erofs::matches_any(allow_, path_)) return;
  if (!told_.insert(path_).second) return;
  std::string shown = path_;
  for (const ResidueRule& secret : rules_) {
    const std::string label = "[" + secret.name + "]";
    for (std::size_t at = shown.find(secret.text); at != std::string::npos; at = shown.find(secret.text, at + label.size())) shown.replace(at, secret.text.size(), label);
  }
  findings_.push_back({std::move(shown), rule.name});
}

}  // namespace dsec::image
