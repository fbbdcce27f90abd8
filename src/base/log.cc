#include "base/log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <ctime>

namespace dsec {
namespace {

struct LogSettings {
  std::string program = "dsec";
  LogLevel least = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
};

// Written once, before threads start.
LogSettings& settings() {
  static LogSettings s;
  return s;
}

std::string_view name_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "?";
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

// A value with spaces or control characters is quoted, so that one line stays one line.
void append_text_value(std::string& out, std::string_view value) {
  bool plain = !value.empty();
  for (const char c : value)
    if (static_cast<unsigned char>(c) <= 0x20 || c == '"') plain = false;
  if (plain) {
    out += value;
  } else {
    append_json_string(out, value);
  }
}

}  // namespace

void set_up_log(std::string_view program, LogLevel least, LogFormat format) {
  settings() = {std::string(program), least, format};
}

void log_line(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  const LogSettings& s = settings();
  if (level < s.least) return;
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);

  std::string line;
  if (s.format == LogFormat::kJson) {
    line = fmt::format(R"({{"time":"{}.{:03}Z","level":"{}","program":"{}","message":)", stamp, ms, name_of(level), s.program);
    append_json_string(line, message);
    for (const LogField& field : fields) {
      line += ',';
      append_json_string(line, field.key);
      line += ':';
      append_json_string(line, field.value);
    }
    line += "}\n";
  } else {
    line = fmt::format("{}.{:03}Z {:7} {}: {}", stamp, ms, name_of(level), s.program, message);
    for (const LogField& field : fields) {
      line += fmt::format("  {}=", field.key);
      append_text_value(line, field.value);
    }
    line += '\n';
  }
  // One write, so that lines of several processes on one descriptor do not mix.
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace dsec
