#include "model/time_text.h"

#include <array>
#include <chrono>
#include <cstdio>

namespace dsec::model {

namespace chrono = std::chrono;

std::string time_text(std::int64_t unix_ms) {
  const chrono::sys_time<chrono::milliseconds> at{chrono::milliseconds(unix_ms)};
  const auto day = chrono::floor<chrono::days>(at);
  const chrono::year_month_day date(day);
  const chrono::hh_mm_ss time(at - day);
  std::array<char, 64> text{};
  const int n = std::snprintf(text.data(), text.size(), "%04d-%02u-%02uT%02d:%02d:%02d.%03dZ", static_cast<int>(date.year()),
                              static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), static_cast<int>(time.hours().count()),
                              static_cast<int>(time.minutes().count()), static_cast<int>(time.seconds().count()),
                              static_cast<int>(time.subseconds().count()));
  return {text.data(), static_cast<std::size_t>(n)};
}

Result<std::int64_t> parse_time(std::string_view text) {
  const auto refused = [&] { return invalid_argument("\"" + std::string(text.substr(0, 64)) + "\" is not a time: expected 2026-01-31T12:00:00.000Z"); };
  constexpr std::string_view kShape = "0000-00-00T00:00:00";
  if (text.size() < kShape.size() + 1 || text.back() != 'Z') return refused();
  for (std::size_t i = 0; i < kShape.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (kShape[i] == '0' ? !digit : text[i] != kShape[i]) return refused();
  }
  const auto number = [&](std::size_t at, std::size_t digits) {
    int value = 0;
    for (std::size_t i = at; i < at + digits; ++i) value = value * 10 + (text[i] - '0');
    return value;
  };
  const chrono::year_month_day date(chrono::year(number(0, 4)), chrono::month(static_cast<unsigned>(number(5, 2))),
                                    chrono::day(static_cast<unsigned>(number(8, 2))));
  if (!date.ok() || number(11, 2) > 23 || number(14, 2) > 59 || number(17, 2) > 59) return refused();
  std::int64_t milliseconds = 0;
  std::string_view fraction = text.substr(kShape.size(), text.size() - kShape.size() - 1);
  if (!fraction.empty()) {
    if (fraction.front() != '.' || fraction.size() < 2 || fraction.size() > 10) return refused();
    fraction.remove_prefix(1);
    for (std::size_t i = 0; i < fraction.size(); ++i) {
      if (fraction[i] < '0' || fraction[i] > '9') return refused();
      if (i < 3) milliseconds = milliseconds * 10 + (fraction[i] - '0');
    }
    for (std::size_t i = fraction.size(); i < 3; ++i) milliseconds *= 10;
  }
  const auto at = chrono::sys_days(date) + chrono::hours(number(11, 2)) + chrono::minutes(number(14, 2)) + chrono::seconds(number(17, 2));
  return chrono::duration_cast<chrono::milliseconds>(at.time_since_epoch()).count() + milliseconds;
}

}  // namespace dsec::model
