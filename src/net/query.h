// The query of a request, read strictly: unknown parameters are refused by name.
#pragma once

#include <charconv>
#include <initializer_list>
#include <optional>
#include <string>

#include "base/result.h"
#include "net/exchange.h"

namespace dsec::net {

class Query {
 public:
  static Result<Query> parse(const net::HttpRequest& request, std::initializer_list<std::string_view> allowed) {
    for (const auto& [name, value] : request.query) {
      bool known = false;
      for (const std::string_view one : allowed) known = known || one == name;
      if (!known) return invalid_argument("\"" + name.substr(0, 64) + "\" is not a parameter of this call");
    }
    return Query(request);
  }
  std::string text(std::string_view name) const {
    const std::string* value = request_->parameter(name);
    return value == nullptr ? std::string() : *value;
  }
  bool has(std::string_view name) const { return request_->parameter(name) != nullptr; }
  Result<std::uint64_t> number(std::string_view name, std::uint64_t otherwise, int base = 10) const {
    const std::string* value = request_->parameter(name);
    if (value == nullptr) return otherwise;
    std::uint64_t out = 0;
    const auto parsed = std::from_chars(value->data(), value->data() + value->size(), out, base);
    if (value->empty() || parsed.ec != std::errc() || parsed.ptr != value->data() + value->size())
      return invalid_argument(std::string(name) + " is not a number");
    return out;
  }
  Result<bool> flag(std::string_view name) const {
    const std::string* value = request_->parameter(name);
    if (value == nullptr || *value == "false" || *value == "0") return false;
    if (*value == "true" || *value == "1" || value->empty()) return true;
    return invalid_argument(std::string(name) + " is not true or false");
  }

 private:
  explicit Query(const net::HttpRequest& request) : request_(&request) {}
  const net::HttpRequest* request_;
};

}  // namespace dsec::net
