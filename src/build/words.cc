#include "build/words.h"

#include <cctype>

namespace dsec::build {

namespace {

constexpr std::size_t kLongestExpanded = 1 << 20;
constexpr int kDeepest = 16;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_name(char c) { return is_name_start(c) || (c >= '0' && c <= '9'); }

class Expansion {
 public:
  Expansion(std::string_view text, const Lookup& lookup, char escape) : text_(text), lookup_(lookup), escape_(escape) {}

  Result<std::string> run() {
    DSEC_ASSIGN(std::string out, until('\0', 0));
    return out;
  }

 private:
  // To `end`, which is taken, or to the end of the text where `end` is NUL.
  Result<std::string> until(char end, int depth) {
    if (depth > kDeepest) return invalid_argument("variables stand too deep in one another");
    std::string out;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (end != '\0' && c == end) {
        at_++;
        return out;
      }
      if (c == '\'') {
        const std::size_t close = text_.find('\'', at_ + 1);
        if (close == std::string_view::npos) return invalid_argument("a ' has no end");
        out += text_.substr(at_ + 1, close - at_ - 1);
        at_ = close + 1;
      } else if (c == '"') {
        at_++;
        DSEC_TRY(quoted(out, depth));
      } else if (c == escape_) {
        if (at_ + 1 < text_.size()) out += text_[at_ + 1];
        at_ += 2;
      } else if (c == '$') {
        DSEC_TRY(variable(out, depth));
      } else {
        out += c;
        at_++;
      }
      if (out.size() > kLongestExpanded) return Error(ErrorCode::kTooLarge, "a word grows past 1 MiB");
    }
    if (end != '\0') return invalid_argument("${ has no }");
    return out;
  }

  Result<void> quoted(std::string& out, int depth) {
    while (at_ < text_.size() && text_[at_] != '"') {
      const char c = text_[at_];
      if (c == escape_ && at_ + 1 < text_.size()) {
        const char next = text_[at_ + 1];
        if (next != '"' && next != '$' && next != escape_) out += c;
        out += next;
        at_ += 2;
      } else if (c == '$') {
        DSEC_TRY(variable(out, depth));
      } else {
        out += c;
        at_++;
      }
      if (out.size() > kLongestExpanded) return Error(ErrorCode::kTooLarge, "a word grows past 1 MiB");
    }
    if (at_ >= text_.size()) return invalid_argument("a \" has no end");
    at_++;
    return {};
  }

  std::string take_name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) at_++;
    return std::string(text_.substr(begin, at_ - begin));
  }

  Result<void> variable(std::string& out, int depth) {
    at_++;
    if (at_ >= text_.size()) {
      out += '$';
      return {};
    }
    if (text_[at_] != '{') {
      if (!is_name_start(text_[at_])) {
        out += '$';
        return {};
      }
      out += lookup_(take_name()).value_or("");
      return {};
    }
    at_++;
    const std::string name = take_name();
    if (name.empty() || !is_name_start(name[0])) return invalid_argument("${ has no variable's name");
    if (at_ >= text_.size()) return invalid_argument("${" + name + " has no }");
    const std::optional<std::string> value = lookup_(name);
    if (text_[at_] == '}') {
      at_++;
      out += value.value_or("");
      return {};
    }
    const bool empty_counts = text_[at_] == ':';
    if (empty_counts) at_++;
    const char form = at_ < text_.size() ? text_[at_] : '\0';
    if (form != '-' && form != '+' && form != '?') return invalid_argument("${" + name + "...}: of the forms with a modifier :-, -, :+, + and :? are known");
    at_++;
    DSEC_ASSIGN(const std::string word, until('}', depth + 1));
    const bool set = value.has_value() && (!empty_counts || !value->empty());
    if (form == '?' && !set) return invalid_argument(name + ": " + (word.empty() ? "it is not set" : word));
    if (form == '+') {
      if (set) out += word;
    } else {
      out += set ? *value : word;
    }
    return {};
  }

  const std::string_view text_;
  const Lookup& lookup_;
  const char escape_;
  std::size_t at_ = 0;
};

}  // namespace

Result<std::vector<std::string>> split_words(std::string_view text, char escape) {
  std::vector<std::string> out;
  std::string word;
  bool in_word = false;
  char quote = '\0';
  for (std::size_t i = 0; i < text.size(); i++) {
    const char c = text[i];
    if (quote == '\0' && is_blank(c)) {
      if (in_word) out.push_back(std::move(word));
      word.clear();
      in_word = false;
      continue;
    }
    in_word = true;
    word += c;
    if (c == escape && quote != '\'' && i + 1 < text.size()) {
      word += text[++i];
    } else if (quote != '\0') {
      if (c == quote) quote = '\0';
    } else if (c == '\'' || c == '"') {
      quote = c;
    }
  }
  if (quote != '\0') return invalid_argument(std::string("a ") + quote + " has no end");
  if (in_word) out.push_back(std::move(word));
  return out;
}

Result<std::string> expand(std::string_view word, const Lookup& lookup, char escape) { return Expansion(word, lookup, escape).run(); }

}  // namespace dsec::build
