// Text forms of bytes: hex, base64 (RFC 4648), base32 (lower case, no padding).
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace dsec {

std::string to_hex(std::string_view bytes);
Result<std::string> from_hex(std::string_view text);
std::string to_base64(std::string_view bytes);
Result<std::string> from_base64(std::string_view text);
// Alphabet a-z2-7.
std::string to_base32(std::string_view bytes);
Result<std::string> from_base32(std::string_view text);

// Replaces every malformed UTF-8 sequence by U+FFFD. `lossy` tells whether any was.
std::string to_utf8(std::string_view bytes, bool* lossy);
bool is_utf8(std::string_view bytes);

}  // namespace dsec
