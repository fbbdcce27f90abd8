// The text of HTTP heads: targets, header lists, status lines. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "net/exchange.h"

namespace dsec::net {

// Fills path, segments and query from `target` (origin form, absolute form or "*").
Result<void> parse_target(HttpRequest& request);

// "HTTP/1.1 200 OK\r\n"
std::string status_line(int status);
// True when `list` ("a, b;q=1") holds `token`.
bool has_token(std::string_view list, std::string_view token);
// "Mon, 30 Nov 2026 04:13:44 GMT"
std::string http_date(std::int64_t unix_seconds);

}  // namespace dsec::net
