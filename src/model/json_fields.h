// Fields that the JSON forms of several things of the model have alike.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <map>
#include <string>
#include <vector>

#include "model/strict_object.h"
#include "model/time_text.h"

namespace dsec::model {

namespace json = boost::json;

inline json::array list(const std::vector<std::string>& texts) {
  json::array out;
  out.reserve(texts.size());
  for (const std::string& one : texts) out.emplace_back(one);
  return out;
}

inline json::object object(const std::map<std::string, std::string>& pairs) {
  json::object out;
  out.reserve(pairs.size());
  for (const auto& [key, value] : pairs) out.emplace(key, value);
  return out;
}

inline json::string text(std::string_view t) { return json::string(t.data(), t.size()); }

inline json::value time_or_null(std::int64_t unix_ms) { return unix_ms == 0 ? json::value(nullptr) : json::value(time_text(unix_ms)); }

inline void read_time(StrictObject& fields, std::string_view name, std::int64_t& out) {
  std::string t;
  fields.read(name, t);
  if (t.empty()) return;
  Result<std::int64_t> parsed = parse_time(t);
  if (parsed.ok())
    out = *parsed;
  else
    fields.fail(std::move(parsed).within(fields.path(name)).error());
}

}  // namespace dsec::model
