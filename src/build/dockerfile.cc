#include "build/dockerfile.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cctype>
#include <optional>

#include "base/encoding.h"
#include "build/words.h"

namespace dsec::build {

namespace {

namespace json = boost::json;

constexpr std::size_t kLongestSummary = 200;
constexpr std::size_t kMostHeredocs = 64;

constexpr std::array<std::string_view, 18> kInstructions = {"FROM", "RUN",  "CMD",        "LABEL",  "MAINTAINER", "EXPOSE",     "ENV",   "ADD",        "COPY",
                                                            "ENTRYPOINT", "VOLUME", "USER", "WORKDIR", "ARG", "ONBUILD", "STOPSIGNAL", "HEALTHCHECK", "SHELL"};
struct FlagsOf {
  std::string_view instruction;
  std::string_view flag;
};
constexpr std::array kFlags = {FlagsOf{"FROM", "platform"}, FlagsOf{"RUN", "mount"},  FlagsOf{"RUN", "network"}, FlagsOf{"COPY", "from"}, FlagsOf{"COPY", "chown"},
                               FlagsOf{"COPY", "chmod"},    FlagsOf{"COPY", "link"},  FlagsOf{"ADD", "chown"},   FlagsOf{"ADD", "chmod"}, FlagsOf{"ADD", "link"}};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
  return text;
}

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

Error at_line(std::size_t line, Error error) {
  error.add_context("line " + std::to_string(line));
  return error;
}

bool is_stage_name(std::string_view name) {
  return !name.empty() && name.size() <= 128 && std::isalpha(static_cast<unsigned char>(name[0])) != 0 &&
         std::all_of(name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-'; });
}

// "<<EOF", "<<-'EOF'", "3<<EOF": where a here-document begins.
struct HeredocStart {
  std::string name;
  bool strip_tabs = false;
  bool expand = true;
};
std::optional<HeredocStart> heredoc_start(std::string_view word) {
  while (!word.empty() && word.front() >= '0' && word.front() <= '9') word.remove_prefix(1);
  if (!word.starts_with("<<") || word.starts_with("<<<")) return std::nullopt;
  word.remove_prefix(2);
  HeredocStart out;
  if (word.starts_with("-")) {
    out.strip_tabs = true;
    word.remove_prefix(1);
  }
  if (word.size() >= 2 && (word.front() == '"' || word.front() == '\'') && word.back() == word.front()) {
    out.expand = false;
    word = word.substr(1, word.size() - 2);
  }
  if (word.empty() || !std::all_of(word.begin(), word.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-'; })) return std::nullopt;
  out.name = std::string(word);
  return out;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {
    if (rest_.starts_with("\xEF\xBB\xBF")) rest_.remove_prefix(3);
  }

  Result<Plan> run() {
    DSEC_TRY(read_directives());
    for (;;) {
      DSEC_ASSIGN(std::optional<Instruction> instruction, next());
      if (!instruction) break;
      if (++count_ > kMaxInstructions) return at_line(instruction->line, Error(ErrorCode::kTooLarge, "more than 1000 instructions"));
      const std::size_t line = instruction->line;
      Result<void> taken = take(std::move(*instruction));
      if (!taken.ok()) return at_line(line, std::move(taken).error());
    }
    if (plan_.stages.empty()) return invalid_argument("there is no FROM");
    return std::move(plan_);
  }

 private:
  std::optional<std::string_view> read_line() {
    if (rest_.empty()) return std::nullopt;
    const std::size_t end = rest_.find('\n');
    std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    line_++;
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  }

  // "# name=value" before anything else.
  Result<void> read_directives() {
    for (;;) {
      const std::string_view before = rest_;
      const std::size_t number = line_;
      const std::optional<std::string_view> line = read_line();
      std::string_view text = line ? trimmed(*line) : std::string_view();
      const std::size_t equals = text.find('=');
      const bool directive = text.starts_with('#') && equals != std::string_view::npos;
      const std::string name = directive ? lower(trimmed(text.substr(1, equals - 1))) : "";
      if (name == "escape") {
        const std::string_view value = trimmed(text.substr(equals + 1));
        if (value != "\\" && value != "`") return at_line(line_, invalid_argument("escape: \\ or `"));
        plan_.escape = value[0];
      } else if (name != "syntax" && name != "check") {
        rest_ = before;
        line_ = number;
        return {};
      }
    }
  }

  // Whether a line goes on, without what says so.
  bool cut_continuation(std::string& line) const {
    const std::size_t last = line.find_last_not_of(" \t");
    if (last == std::string::npos || line[last] != plan_.escape) return false;
    line.erase(last);
    return true;
  }

  Result<std::optional<Instruction>> next() {
    std::string text;
    std::size_t first = 0;
    for (;;) {
      const std::optional<std::string_view> line = read_line();
      if (!line) break;
      if (line->find('\0') != std::string_view::npos) return at_line(line_, invalid_argument("a NUL byte"));
      const std::string_view bare = trimmed(*line);
      if (bare.starts_with('#') || bare.empty()) continue;  // also between the lines of one instruction
      if (first == 0) first = line_;
      std::string part(first == line_ ? bare : *line);
      const bool more = cut_continuation(part);
      text += part;
      if (!more) break;
    }
    if (first == 0) return std::optional<Instruction>();
    Result<Instruction> out = instruction_of(text, first);
    if (!out.ok()) return at_line(first, std::move(out).error());
    return std::optional(std::move(out).value());
  }

  Result<Instruction> instruction_of(std::string_view text, std::size_t line) {
    Instruction out;
    out.line = line;
    const std::size_t blank = text.find_first_of(" \t");
    out.name = upper(text.substr(0, blank));
    if (std::find(kInstructions.begin(), kInstructions.end(), out.name) == kInstructions.end()) return invalid_argument("unknown instruction: " + to_utf8(text.substr(0, std::min<std::size_t>(blank, 40)), nullptr));
    std::string_view rest = blank == std::string_view::npos ? std::string_view() : trimmed(text.substr(blank));
    DSEC_TRY(take_flags(rest, out));
    out.text = std::string(rest);
    if (rest.starts_with('[')) read_json(out);
    const bool may = out.name == "RUN" || out.name == "COPY" || out.name == "ADD";
    if (may && !out.json) DSEC_TRY(read_heredocs(out));
    if (trimmed(out.text).empty()) return invalid_argument(out.name + " says nothing");
    return out;
  }

  Result<void> take_flags(std::string_view& rest, Instruction& out) const {
    while (rest.starts_with("--")) {
      std::size_t end = rest.find_first_of(" \t");
      if (end == std::string_view::npos) end = rest.size();
      const std::string_view flag = rest.substr(2, end - 2);
      const std::string name = lower(flag.substr(0, flag.find('=')));
      const bool known = std::any_of(kFlags.begin(), kFlags.end(), [&](const FlagsOf& one) { return one.instruction == out.name && one.flag == name; });
      const bool healthcheck = out.name == "HEALTHCHECK";
      if (!known && !healthcheck) return Error(ErrorCode::kUnsupported, out.name + " --" + name.substr(0, 40) + " is not supported");
      const bool has_value = flag.find('=') != std::string_view::npos;
      if (!has_value && name != "link" && !healthcheck) return invalid_argument(out.name + " --" + name + " needs a value: --" + name + "=...");
      if (name != "mount" && out.flag(name) != nullptr) return invalid_argument(out.name + " --" + name + " is given twice");
      out.flags.emplace_back(name, has_value ? std::string(flag.substr(flag.find('=') + 1)) : "true");
      rest = trimmed(rest.substr(end));
    }
    return {};
  }

  static void read_json(Instruction& out) {
    boost::system::error_code failed;
    const json::value value = json::parse(out.text, failed);
    if (failed || !value.is_array()) return;  // then it is a command that begins with a bracket
    for (const json::value& item : value.get_array()) {
      if (!item.is_string()) return out.words.clear();
      out.words.emplace_back(item.get_string());
    }
    out.json = true;
  }

  Result<void> read_heredocs(Instruction& out) {
    if (out.text.find("<<") == std::string::npos) return {};
    Result<std::vector<std::string>> words = split_words(out.text, plan_.escape);
    if (!words.ok()) return out.name == "RUN" ? Result<void>() : std::move(words).error();  // the shell's business
    for (const std::string& word : *words) {
      const std::optional<HeredocStart> start = heredoc_start(word);
      if (!start) continue;
      if (out.heredocs.size() == kMostHeredocs) return Error(ErrorCode::kTooLarge, "more than 64 here-documents");
      Heredoc document{.name = start->name, .content = {}, .expand = start->expand};
      for (;;) {
        const std::optional<std::string_view> line = read_line();
        if (!line) return invalid_argument("the here-document " + start->name + " has no end");
        std::string_view text = *line;
        while (start->strip_tabs && text.starts_with('\t')) text.remove_prefix(1);
        if (text == start->name) break;
        document.content.append(text).append("\n");
      }
      out.heredocs.push_back(std::move(document));
    }
    return {};
  }

  Result<void> take(Instruction instruction) {
    if (instruction.name == "FROM") return take_from(instruction);
    if (plan_.stages.empty()) {
      if (instruction.name != "ARG") return invalid_argument(instruction.name + " stands before the first FROM");
      plan_.globals.push_back(std::move(instruction));
      return {};
    }
    if (instruction.name == "ONBUILD") return Error(ErrorCode::kUnsupported, "ONBUILD is not supported");
    if (instruction.name == "HEALTHCHECK" && upper(trimmed(instruction.text)) != "NONE") return Error(ErrorCode::kUnsupported, "HEALTHCHECK is not supported: a sandbox says itself when it is ready (start.ready_command)");
    plan_.stages.back().instructions.push_back(std::move(instruction));
    return {};
  }

  Result<void> take_from(const Instruction& from) {
    DSEC_ASSIGN(const std::vector<std::string> words, split_words(from.text, plan_.escape));
    Stage stage{.line = from.line, .base = words[0], .platform = {}, .name = {}, .instructions = {}};
    if (words.size() == 3 && upper(words[1]) == "AS") {
      stage.name = lower(words[2]);
      if (!is_stage_name(stage.name)) return invalid_argument("not a stage's name: " + words[2].substr(0, 100));
      if (std::any_of(plan_.stages.begin(), plan_.stages.end(), [&](const Stage& one) { return one.name == stage.name; })) return invalid_argument("two stages are called " + stage.name);
    } else if (words.size() != 1) {
      return invalid_argument("FROM IMAGE [AS NAME]");
    }
    if (const std::string* platform = from.flag("platform")) stage.platform = *platform;
    plan_.stages.push_back(std::move(stage));
    return {};
  }

  std::string_view rest_;
  std::size_t line_ = 0;
  std::size_t count_ = 0;
  Plan plan_;
};

}  // namespace

const std::string* Instruction::flag(std::string_view wanted) const {
  for (const auto& [known, value] : flags) {
    if (known == wanted) return &value;
  }
  return nullptr;
}

std::string Instruction::summary() const {
  std::string out = name;
  for (const auto& [flag, value] : flags) out += " --" + flag + "=" + value;
  out += " ";
  for (const char c : text) {
    const bool blank = static_cast<unsigned char>(c) < 0x20 || c == ' ';
    if (!blank) out += c;
    else if (out.back() != ' ') out += ' ';
  }
  if (out.size() > kLongestSummary) out = out.substr(0, kLongestSummary) + "...";
  return to_utf8(out, nullptr);
}

Result<Plan> parse_dockerfile(std::string_view text) {
  if (text.size() > kMaxDockerfile) return Error(ErrorCode::kTooLarge, "a Dockerfile has at most 1 MiB");
  return Parser(text).run();
}

}  // namespace dsec::build
