// Unix milliseconds as RFC 3339: "2026-11-30T04:13:44.123Z".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace dsec::model {

std::string time_text(std::int64_t unix_ms);
// Exactly the form above; the fraction may have 0 to 9 digits.
Result<std::int64_t> parse_time(std::string_view text);

}  // namespace dsec::model
