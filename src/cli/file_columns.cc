#include "cli/file_columns.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "cli/units_text.h"

namespace dsec::cli {

namespace json = boost::json;

std::vector<Column> file_columns(std::string name_field) {
  return {
      {"MODE", [](const json::object& o) {
         const std::string mode = text_at(o, "mode");
         return value_at(o, "mode") && value_at(o, "mode")->is_string() ? mode : fmt::format("{:04o}", number_at(o, "mode"));
       }},
      {"OWNER", [](const json::object& o) { return (text_at(o, "user").empty() ? text_at(o, "uid") : text_at(o, "user")) + ":" +
                                                   (text_at(o, "group").empty() ? text_at(o, "gid") : text_at(o, "group")); }},
      {"SIZE", [](const json::object& o) { return text_at(o, "size"); }},
      {"MODIFIED", [](const json::object& o) { return time_text(value_at(o, "mtime_ns") ? number_at(o, "mtime_ns") / 1'000'000 : time_at(o, "mtime_ms")); }},
      {"NAME", [name_field = std::move(name_field)](const json::object& o) {
         const std::string type = text_at(o, "type");
         return text_at(o, name_field) + (type == "directory" ? "/" : type == "symlink" ? " -> " + text_at(o, "target") : "");
       }},
  };
}

}  // namespace dsec::cli
