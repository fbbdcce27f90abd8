// Quantities as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace dsec::cli {

// "90", "90s", "15m", "2h30m", "1d" -> seconds. "0" is 0.
Result<std::int64_t> parse_seconds(std::string_view text);
// "512", "512m", "4g", "1.5GiB" -> MiB. A bare number is MiB.
Result<std::int64_t> parse_mebibytes(std::string_view text);
// 1536 -> "1.5 KiB"
std::string bytes_text(std::uint64_t bytes);
// 5000 -> "5s", 3'700'000 -> "1h"; the largest unit that fits
std::string age_text(std::int64_t milliseconds);
// Unix time in milliseconds -> "2026-11-30 04:13:38Z"; "" for 0
std::string time_text(std::int64_t unix_ms);

}  // namespace dsec::cli
