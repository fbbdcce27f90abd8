// One line a decision, for people (default) or as JSON, on standard error.
//
//   log_info("sandbox started", {{"sandbox", id}, {"ms", "3.1"}});
//
// Libraries return errors; programs log once, where the decision is made.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace dsec {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

struct LogField {
  std::string_view key;
  std::string value;
};

// Called once by main before threads start. `program` names the writer.
void set_up_log(std::string_view program, LogLevel least, LogFormat format);
void log_line(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

inline void log_debug(std::string_view m, std::initializer_list<LogField> f = {}) { log_line(LogLevel::kDebug, m, f); }
inline void log_info(std::string_view m, std::initializer_list<LogField> f = {}) { log_line(LogLevel::kInfo, m, f); }
inline void log_warning(std::string_view m, std::initializer_list<LogField> f = {}) { log_line(LogLevel::kWarning, m, f); }
inline void log_error(std::string_view m, std::initializer_list<LogField> f = {}) { log_line(LogLevel::kError, m, f); }

}  // namespace dsec
