// Listings: aligned columns for people, JSON, names only, or a format of the caller's.
#pragma once

#include <boost/json/fwd.hpp>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace dsec::cli {

struct ListingOptions {
  bool json = false;
  bool quiet = false;  // the first column's full value, one a line
  bool wide = false;   // all columns, nothing cut
  std::string format;  // "{id} {labels.job}": fields by path; \n and \t are understood
};

struct Column {
  std::string title;
  std::function<std::string(const boost::json::object&)> text;
  bool wide_only = false;
};

// Display width of UTF-8 text: code points, without combining ones.
std::size_t text_width(std::string_view text);
// Rows of equal length; the last column is not padded. Control characters are shown as '?'.
std::string align(const std::vector<std::vector<std::string>>& rows);
// "{id} {labels.job}" for one item. kInvalidArgument for an unclosed brace; an absent field is empty.
Result<std::string> apply_format(std::string_view format, const boost::json::object& item);
// What `items` look like. `name_of` gives the text of --quiet.
Result<std::string> listing(const boost::json::array& items, const std::vector<Column>& columns,
                            const std::function<std::string(const boost::json::object&)>& name_of, const ListingOptions& options);

// Access that forgives: "" or 0 when absent or of another type. Paths with dots.
std::string text_at(const boost::json::object& object, std::string_view path);
std::int64_t number_at(const boost::json::object& object, std::string_view path);
const boost::json::value* value_at(const boost::json::object& object, std::string_view path);
// Unix milliseconds of a number or of an RFC 3339 text; 0 when absent.
std::int64_t time_at(const boost::json::object& object, std::string_view path);
// Indented JSON, for people.
std::string pretty(const boost::json::value& value);
// Removes what could drive a terminal, for text that a sandbox chose.
std::string printable(std::string_view text);

}  // namespace dsec::cli
