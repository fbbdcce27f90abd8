#include "origin/s3_text.h"

#include <array>
#include <charconv>
#include <optional>
#include <utility>

namespace dsec::origin {

namespace {

// "&#x41;" and "&#65;", of ASCII: what we ask for holds nothing else.
std::optional<char> numbered(std::string_view name) {
  int base = 10;
  if (name.starts_with('x')) {
    base = 16;
    name.remove_prefix(1);
  }
  int value = 0;
  const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), value, base);
  if (failure != std::errc() || end != name.data() + name.size() || value < 1 || value > 127) return std::nullopt;
  return static_cast<char>(value);
}

std::optional<char> escape(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, char>, 5> kNames = {{{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}}};
  for (const auto& [known, value] : kNames)
    if (name == known) return value;
  if (name.starts_with('#')) return numbered(name.substr(1));
  return std::nullopt;
}

Result<std::string> unescaped(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '&') {
      out += text[at];
      continue;
    }
    const std::size_t end = text.find(';', at);
    const std::optional<char> value = end == std::string_view::npos ? std::nullopt : escape(text.substr(at + 1, end - at - 1));
    if (!value) return Error(ErrorCode::kDataFault, "the server's answer holds an escape that is not known");
    out += *value;
    at = end;
  }
  return out;
}

}  // namespace

Result<std::vector<std::string>> texts_of(std::string_view xml, std::string_view element) {
  const std::string open = "<" + std::string(element) + ">";
  const std::string close = "</" + std::string(element) + ">";
  std::vector<std::string> out;
  for (std::size_t at = xml.find(open); at != std::string_view::npos; at = xml.find(open, at)) {
    at += open.size();
    const std::size_t end = xml.find(close, at);
    if (end == std::string_view::npos) return Error(ErrorCode::kDataFault, "the server's answer is cut off");
    DSEC_ASSIGN(std::string text, unescaped(xml.substr(at, end - at)));
    out.push_back(std::move(text));
    at = end + close.size();
  }
  return out;
}

std::string first_text_of(std::string_view xml, std::string_view element) {
  const Result<std::vector<std::string>> texts = texts_of(xml, element);
  return texts.ok() && !texts->empty() ? texts->front() : std::string();
}

}  // namespace dsec::origin
