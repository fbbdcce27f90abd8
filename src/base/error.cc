#include "base/error.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "base/errno_text.h"

namespace dsec {

const ErrorTraits& traits(ErrorCode code) {
  static constexpr std::array<ErrorTraits, 14> kTable = {{
      {"internal", 500, false, true, "never"},  // index 0 is not a code
      {"invalid_argument", 400, false, false, "never"},
      {"unauthenticated", 401, false, false, "never"},
      {"permission_denied", 403, false, false, "never"},
      {"not_found", 404, false, false, "never"},
      {"conflict", 409, false, false, "never"},
      {"too_large", 413, false, false, "never"},
      {"exhausted", 429, true, false, "after"},
      {"cancelled", 499, false, false, "same_key"},
      {"internal", 500, true, true, "same_key"},
      {"data_fault", 500, false, true, "new_key"},
      {"unsupported", 501, false, false, "never"},
      {"unavailable", 503, true, true, "same_key"},
      {"deadline_exceeded", 504, true, false, "same_key"},
  }};
  const auto index = static_cast<std::size_t>(code);
  return kTable[index < kTable.size() ? index : 0];
}

namespace {
ErrorCode code_of(int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
    case ESRCH:
      return ErrorCode::kNotFound;
    case EACCES:
    case EPERM:
      return ErrorCode::kPermissionDenied;
    case EEXIST:
    case EBUSY:
    case ENOTEMPTY:
      return ErrorCode::kConflict;
    case EINVAL:
    case ENAMETOOLONG:
    case ELOOP:
    case EISDIR:
      return ErrorCode::kInvalidArgument;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case EAGAIN:
      return ErrorCode::kExhausted;
    case EFBIG:
    case E2BIG:
      return ErrorCode::kTooLarge;
    case ETIMEDOUT:
      return ErrorCode::kDeadlineExceeded;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
      return ErrorCode::kUnavailable;
    case ENOSYS:
    case EOPNOTSUPP:
      return ErrorCode::kUnsupported;
    case EIO:
      return ErrorCode::kDataFault;
    default:
      return ErrorCode::kInternal;
  }
}
}  // namespace

Error errno_error(std::string_view doing, int error_number, std::source_location where) {
  std::string message(doing);
  message += ": ";
  message += errno_text(error_number);
  return Error(code_of(error_number), std::move(message), error_number, where);
}

void die_on_error_value(const Error& error) { die("value() of an error: " + error.message(), error.where()); }

void die(std::string_view what, std::source_location where) {
  std::fprintf(stderr, "%s:%u: %.*s\n", where.file_name(), where.line(), static_cast<int>(what.size()), what.data());
  std::abort();
}

}  // namespace dsec
