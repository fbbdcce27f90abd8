#include "net/header_list.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace dsec::net {

namespace {
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool is_token(std::string_view name) {
  static constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    const char l = lower(c);
    return (l >= 'a' && l <= 'z') || (c >= '0' && c <= '9') || kMarks.find(c) != std::string_view::npos;
  });
}
}  // namespace

bool same_name(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) { return lower(x) == lower(y); });
}

const std::string* find_header(const HeaderList& headers, std::string_view name) {
  for (const auto& [key, value] : headers)
    if (same_name(key, name)) return &value;
  return nullptr;
}

void append_header(std::string& out, std::string_view name, std::string_view value) {
  if (!is_token(name)) return;
  out.append(name);
  out.append(": ");
  for (const char c : value) out.push_back((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f ? ' ' : c);
  out.append("\r\n");
}

bool is_framing_header(std::string_view name) {
  return same_name(name, "Content-Length") || same_name(name, "Transfer-Encoding") || same_name(name, "Connection") ||
         same_name(name, "Keep-Alive") || same_name(name, "Date");
}

std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = hex_digit(text[i + 1]);
      const int low = hex_digit(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      out.push_back(static_cast<char>(high << 4 | low));
      i += 2;
    } else {
      out.push_back(plus_is_space && text[i] == '+' ? ' ' : text[i]);
    }
  }
  return out;
}

std::string percent_encode(std::string_view text) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const char l = lower(c);
    if ((l >= 'a' && l <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == '~') {
      out.push_back(c);
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out.push_back('%');
      out.push_back(kHex[byte >> 4]);
      out.push_back(kHex[byte & 15]);
    }
  }
  return out;
}

std::string to_text(const RequestHead& head) {
  std::string text = head.method + " " + head.target + " HTTP/1.1\r\n";
  for (const auto& [name, value] : head.headers)
    if (!is_framing_header(name)) append_header(text, name, value);
  if (head.upgrade) append_header(text, "Connection", "Upgrade");
  if (head.framing == BodyFraming::kLength) append_header(text, "Content-Length", std::to_string(head.length));
  if (head.framing == BodyFraming::kChunked) append_header(text, "Transfer-Encoding", "chunked");
  return text + "\r\n";
}

std::string chunk_head(std::size_t size) {
  std::array<char, 20> text{};
  const int n = std::snprintf(text.data(), text.size(), "%zx\r\n", size);
  return {text.data(), static_cast<std::size_t>(n)};
}

}  // namespace dsec::net
