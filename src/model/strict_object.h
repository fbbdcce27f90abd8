// StrictObject reads a JSON object field by field and refuses what it was not
// asked about, naming the field by its path ("network.rules[2].port").
//
//   StrictObject fields(value, "resources");
//   fields.read("memory_mb", out.memory_mb);
//   DSEC_TRY(fields.finish());
//
// The first error is kept; reads after it do nothing. A field that is absent or
// null leaves its target as it was.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace dsec::model {

// Strict JSON, at most 32 levels deep, no field twice in one object.
Result<boost::json::value> parse_json(std::string_view text);

class StrictObject {
 public:
  // `where` is "" at the top of a document. `value` outlives the reader.
  StrictObject(const boost::json::value& value, std::string where);

  void read(std::string_view name, std::string& out);
  void read(std::string_view name, bool& out);
  void read(std::string_view name, double& out);
  void read(std::string_view name, std::int64_t& out);
  void read(std::string_view name, std::uint64_t& out);
  void read(std::string_view name, std::uint16_t& out);
  void read(std::string_view name, std::vector<std::string>& out);
  void read(std::string_view name, std::map<std::string, std::string>& out);
  // The raw value; nullptr when absent or null, or after an error.
  const boost::json::value* take(std::string_view name);
  // An array; nullptr when absent or null, or when it is something else (an error).
  const boost::json::array* take_array(std::string_view name);
  void ignore(std::string_view name) { take(name); }
  void require(std::string_view name);
  // Reads a string and turns it into an enumerator, or fails with `parse`'s error.
  template <typename Enum>
  void read_enum(std::string_view name, Enum& out, Result<Enum> (*parse)(std::string_view)) {
    std::string text;
    if (!has(name)) {
      take(name);
      return;
    }
    read(name, text);
    if (error_) return;
    Result<Enum> parsed = parse(text);
    if (parsed.ok())
      out = *parsed;
    else
      fail(path(name) + ": " + parsed.error().message());
  }

  bool has(std::string_view name) const;
  std::string path(std::string_view name) const;
  void fail(std::string message);
  void fail(Error error);
  // The first error, or the first field that nobody read.
  Result<void> finish();

 private:
  const boost::json::object* object_ = nullptr;
  std::string where_;
  std::vector<bool> seen_;
  std::optional<Error> error_;
};

}  // namespace dsec::model
