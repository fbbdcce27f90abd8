#include "model/selector.h"

#include <algorithm>

namespace dsec::model {

namespace {
std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Cuts at commas that stand outside parentheses.
Result<std::vector<std::string_view>> split_requirements(std::string_view text) {
  std::vector<std::string_view> parts;
  bool inside = false;
  std::size_t start = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && !inside)) {
      parts.push_back(trim(text.substr(start, i - start)));
      start = i + 1;
    } else if (text[i] == '(' || text[i] == ')') {
      if (inside == (text[i] == '(')) return invalid_argument("selector: unbalanced parentheses");
      inside = text[i] == '(';
    }
  }
  if (inside) return invalid_argument("selector: unbalanced parentheses");
  return parts;
}

bool is_key(std::string_view key) {
  return !key.empty() && key.size() <= 128 &&
         std::ranges::none_of(key, [](char c) { return c == '=' || c == '!' || c == ' ' || c == '(' || c == ')' || c == ',' || static_cast<unsigned char>(c) < 0x20; });
}
}  // namespace

Result<Selector> Selector::parse(std::string_view text) {
  constexpr std::size_t kMaxText = 4096;
  constexpr std::size_t kMaxRequirements = 64;
  Selector selector;
  text = trim(text);
  if (text.empty()) return selector;
  if (text.size() > kMaxText) return invalid_argument("selector: longer than 4096 bytes");
  DSEC_ASSIGN(const std::vector<std::string_view> parts, split_requirements(text));
  if (parts.size() > kMaxRequirements) return invalid_argument("selector: more than 64 requirements");
  for (const std::string_view part : parts) {
    Requirement requirement;
    std::string_view key;
    if (const std::size_t open = part.find('('); open != std::string_view::npos) {
      if (part.back() != ')') return invalid_argument("selector: text after \")\"");
      std::string_view head = trim(part.substr(0, open));
      const std::size_t space = head.find_last_of(" \t");
      if (space == std::string_view::npos) return invalid_argument("selector: expected \"key in (…)\" or \"key notin (…)\"");
      const std::string_view word = head.substr(space + 1);
      if (word != "in" && word != "notin") return invalid_argument("selector: expected in or notin, not \"" + std::string(word) + "\"");
      requirement.op = word == "in" ? Operator::kIn : Operator::kNotIn;
      key = trim(head.substr(0, space));
      std::string_view values = part.substr(open + 1, part.size() - open - 2);
      while (true) {
        const std::size_t comma = values.find(',');
        requirement.values.emplace_back(trim(values.substr(0, comma)));
        if (comma == std::string_view::npos) break;
        values.remove_prefix(comma + 1);
      }
    } else if (const std::size_t bang = part.find("!="); bang != std::string_view::npos) {
      requirement.op = Operator::kNotEquals;
      key = trim(part.substr(0, bang));
      requirement.values.emplace_back(trim(part.substr(bang + 2)));
    } else if (const std::size_t equals = part.find('='); equals != std::string_view::npos) {
      requirement.op = Operator::kEquals;
      key = trim(part.substr(0, equals));
      const std::size_t value = part.substr(equals).starts_with("==") ? equals + 2 : equals + 1;
      requirement.values.emplace_back(trim(part.substr(value)));
    } else if (part.starts_with("!")) {
      requirement.op = Operator::kNotExists;
      key = trim(part.substr(1));
    } else {
      requirement.op = Operator::kExists;
      key = part;
    }
    if (!is_key(key)) return invalid_argument("selector: \"" + std::string(part.substr(0, 128)) + "\" has no proper key");
    requirement.key = std::string(key);
    selector.requirements_.push_back(std::move(requirement));
  }
  return selector;
}

bool Selector::matches(const std::map<std::string, std::string>& labels) const {
  return std::ranges::all_of(requirements_, [&](const Requirement& r) {
    const auto found = labels.find(r.key);
    const bool has = found != labels.end();
    const bool listed = has && std::ranges::find(r.values, found->second) != r.values.end();
    switch (r.op) {
      case Operator::kEquals:
      case Operator::kIn:
        return listed;
      // As kubectl: a label that is not there differs from every value.
      case Operator::kNotEquals:
      case Operator::kNotIn:
        return !listed;
      case Operator::kExists:
        return has;
      case Operator::kNotExists:
        return !has;
    }
    return false;
  });
}

}  // namespace dsec::model
