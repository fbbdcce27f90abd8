// The text of HTTP heads: targets, header lists, status lines. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "net/exchange.h"

namespace dsec::net {

bool same_name(std::string_view a, std::string_view b);  // ASCII, without case
// nullopt for a broken escape.
std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space);
std::string percent_encode(std::string_view text);  // all but unreserved characters

// Fills path, segments and query from `target` (origin form, absolute form or "*").
Result<void> parse_target(HttpRequest& request);

// "HTTP/1.1 200 OK\r\n"
std::string status_line(int status);
// Appends "Name: value\r\n"; control characters of a value become spaces, a name
// that is no token is left out.
void append_header(std::string& out, std::string_view name, std::string_view value);
// Names that only the framing of a connection may set: a handler's are ignored.
bool is_framing_header(std::string_view name);
// True when `list` ("a, b;q=1") holds `token`.
bool has_token(std::string_view list, std::string_view token);
const std::string* find_header(const HeaderList& headers, std::string_view name);
// "Mon, 30 Nov 2026 04:13:44 GMT"
std::string http_date(std::int64_t unix_seconds);

}  // namespace dsec::net
