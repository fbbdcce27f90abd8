// The fields and escapes of a message's head, and the head of a request. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dsec::net {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

bool same_name(std::string_view a, std::string_view b);  // ASCII, without case
// The first one; nullptr when absent.
const std::string* find_header(const HeaderList& headers, std::string_view name);
// Appends "Name: value\r\n"; control characters of a value become spaces, a name
// that is no token is left out.
void append_header(std::string& out, std::string_view name, std::string_view value);
// Names that only the framing of a connection may set: a handler's are ignored.
bool is_framing_header(std::string_view name);

// nullopt for a broken escape.
std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space);
std::string percent_encode(std::string_view text);  // all but unreserved characters

enum class BodyFraming { kNone, kLength, kChunked };

struct RequestHead {
  std::string method = "GET";
  std::string target = "/";
  HeaderList headers;  // Host too; framing headers are made here
  BodyFraming framing = BodyFraming::kNone;
  std::uint64_t length = 0;
  bool upgrade = false;  // sends "Connection: Upgrade"; Upgrade is among the headers
};
std::string to_text(const RequestHead& head);
// The bytes before a chunk of a body; behind it comes "\r\n".
std::string chunk_head(std::size_t size);

}  // namespace dsec::net
