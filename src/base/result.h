// Result<T>: a value or an Error, to be looked at.
//
// A Result is the only way in which a function of this tree reports that the
// caller or the world was at fault. value() on an error is a programming error
// and ends the process.
#pragma once

#include <optional>
#include <utility>
#include <variant>

#include "base/error.h"

namespace dsec {

template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: converts on purpose
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return checked(), *std::get_if<0>(&state_); }
  const T& value() const& { return checked(), *std::get_if<0>(&state_); }
  T&& value() && { return checked(), std::move(*std::get_if<0>(&state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // Only when !ok().
  Error& error() & { return *std::get_if<1>(&state_); }
  const Error& error() const& { return *std::get_if<1>(&state_); }
  Error&& error() && { return std::move(*std::get_if<1>(&state_)); }

  // Adds what was being done, outermost first, if this is an error.
  Result within(std::string_view doing) && {
    if (!ok()) error().add_context(doing);
    return std::move(*this);
  }

 private:
  void checked() const {
    if (!ok()) die_on_error_value(*std::get_if<1>(&state_));
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;

  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: converts on purpose

  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  void value() const {
    if (error_) die_on_error_value(*error_);
  }
  Error& error() & { return *error_; }
  const Error& error() const& { return *error_; }
  Error&& error() && { return std::move(*error_); }
  Result within(std::string_view doing) && {
    if (error_) error_->add_context(doing);
    return std::move(*this);
  }

 private:
  std::optional<Error> error_;
};

}  // namespace dsec

// The macros of this tree. DSEC_TRY leaves the function with the error of a
// Result<void>; DSEC_ASSIGN does so too, or else declares `target` with the
// value. The CO forms are for coroutines.
#define DSEC_CONCAT_INNER(a, b) a##b
#define DSEC_CONCAT(a, b) DSEC_CONCAT_INNER(a, b)
#define DSEC_RETURN_ERROR(keyword, expression)                                       \
  do {                                                                               \
    if (auto dsec_try_result = (expression); !dsec_try_result.ok())                  \
      keyword std::move(dsec_try_result).error();                                    \
  } while (false)
#define DSEC_ASSIGN_OR(keyword, name, target, expression)                            \
  auto name = (expression);                                                          \
  if (!name.ok()) keyword std::move(name).error();                                   \
  target = std::move(name).value()

#define DSEC_TRY(...) DSEC_RETURN_ERROR(return, (__VA_ARGS__))
#define DSEC_CO_TRY(...) DSEC_RETURN_ERROR(co_return, (__VA_ARGS__))
#define DSEC_ASSIGN(target, ...) DSEC_ASSIGN_OR(return, DSEC_CONCAT(dsec_result_, __LINE__), target, (__VA_ARGS__))
#define DSEC_CO_ASSIGN(target, ...) DSEC_ASSIGN_OR(co_return, DSEC_CONCAT(dsec_result_, __LINE__), target, (__VA_ARGS__))
