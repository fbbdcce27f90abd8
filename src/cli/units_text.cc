#include "cli/units_text.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <ctime>

namespace dsec::cli {

Result<std::int64_t> parse_seconds(std::string_view text) {
  const auto refused = [text] { return invalid_argument("\"" + std::string(text) + "\" is no duration: write 90s, 15m, 2h or 1d"); };
  std::int64_t total = 0;
  std::string_view rest = text;
  if (rest.empty()) return refused();
  while (!rest.empty()) {
    std::int64_t number = 0;
    const auto parsed = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (parsed.ec != std::errc() || number < 0 || number > 1'000'000'000) return refused();
    rest.remove_prefix(static_cast<std::size_t>(parsed.ptr - rest.data()));
    std::int64_t unit = 1;
    if (!rest.empty()) {
      switch (rest.front()) {
        case 's': unit = 1; break;
        case 'm': unit = 60; break;
        case 'h': unit = 3600; break;
        case 'd': unit = 86400; break;
        default: return refused();
      }
      rest.remove_prefix(1);
    }
    total += number * unit;
  }
  return total;
}

Result<std::int64_t> parse_mebibytes(std::string_view text) {
  const std::string copy(text);
  char* end = nullptr;
  const double number = std::strtod(copy.c_str(), &end);
  std::string unit(end);
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  double factor = 0;
  if (unit.empty() || unit == "m" || unit == "mb" || unit == "mib") factor = 1;
  if (unit == "g" || unit == "gb" || unit == "gib") factor = 1024;
  if (unit == "t" || unit == "tb" || unit == "tib") factor = 1024 * 1024;
  const double value = number * factor;
  if (end == copy.c_str() || factor == 0 || !(value >= 1) || value > 1e9)
    return invalid_argument("\"" + copy + "\" is no size: write 512m or 4g");
  return static_cast<std::int64_t>(std::llround(value));
}

std::string bytes_text(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string age_text(std::int64_t milliseconds) {
  const std::int64_t seconds = std::max<std::int64_t>(0, milliseconds) / 1000;
  if (seconds < 120) return fmt::format("{}s", seconds);
  if (seconds < 2 * 3600) return fmt::format("{}m", seconds / 60);
  if (seconds < 2 * 86400) return fmt::format("{}h", seconds / 3600);
  return fmt::format("{}d", seconds / 86400);
}

std::string time_text(std::int64_t unix_ms) {
  if (unix_ms == 0) return "";
  const std::time_t seconds = unix_ms / 1000;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%SZ", &parts);
  return text;
}

}  // namespace dsec::cli
