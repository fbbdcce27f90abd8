// Error: what went wrong, for a program (code) and for a person (message).
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <string_view>

namespace dsec {

// The closed list. api/errors.md and this table (error.cc) say the same; a test
// compares them. Code branches on the code, never on the text.
enum class ErrorCode : std::uint8_t {
  kInvalidArgument = 1,  // the request cannot be right: 400
  kUnauthenticated,      // no key or a wrong one: 401
  kPermissionDenied,     // the key may not do this: 403
  kNotFound,             // 404
  kConflict,             // exists already, or another state than the call needs: 409
  kTooLarge,             // body, output or file past its limit: 413
  kExhausted,            // quota, capacity or a full queue: 429, with Retry-After
  kCancelled,            // the caller went away or cancelled: 499
  kInternal,             // our fault: 500
  kDataFault,            // stored bytes are missing or wrong: 500
  kUnsupported,          // this host or backend cannot: 501
  kUnavailable,          // a part of the platform is not there now: 503
  kDeadlineExceeded,     // 504
};

struct ErrorTraits {
  std::string_view name;   // "invalid_argument": the code of the REST contract
  int http_status;
  bool retryable;          // the same call may go through later
  bool infra;              // the platform's fault, to be masked by a trainer
  std::string_view retry;  // same_key | new_key | never | after
};

const ErrorTraits& traits(ErrorCode code);

class Error {
 public:
  Error(ErrorCode code, std::string message, int error_number = 0,
        std::source_location where = std::source_location::current())
      : code_(code), errno_(error_number), message_(std::move(message)), where_(where) {}

  ErrorCode code() const { return code_; }
  int error_number() const { return errno_; }  // errno, or 0
  const std::string& message() const { return message_; }
  const std::source_location& where() const { return where_; }

  // "attach layer 2: mount: No such file or directory"
  void add_context(std::string_view doing) {
    message_.insert(0, ": ");
    message_.insert(0, doing);
  }

 private:
  ErrorCode code_;
  int errno_;
  std::string message_;
  std::source_location where_;
};

// An Error from errno: the code by the number, the message "doing: strerror".
Error errno_error(std::string_view doing, int error_number,
                  std::source_location where = std::source_location::current());

inline Error invalid_argument(std::string message, std::source_location where = std::source_location::current()) {
  return Error(ErrorCode::kInvalidArgument, std::move(message), 0, where);
}

[[noreturn]] void die_on_error_value(const Error& error);
[[noreturn]] void die(std::string_view what, std::source_location where = std::source_location::current());

}  // namespace dsec

// For what only a programming error can break; on in release, never on input
// from outside.
#define DSEC_CHECK(condition) \
  do {                        \
    if (!(condition)) ::dsec::die("check failed: " #condition); \
  } while (false)
