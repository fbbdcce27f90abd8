#include "cli/table.h"

#include <boost/json.hpp>
#include <cstdio>
#include <ctime>

#include "model/json_text.h"

namespace dsec::cli {

namespace json = boost::json;

std::size_t text_width(std::string_view text) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0) == 0x80) continue;
    const bool combining = byte == 0xCC || (byte == 0xCD && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xB0);
    if (!combining) ++width;
  }
  return width;
}

std::string printable(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // C0, DEL, and C1 in UTF-8 (C2 80 to C2 9F).
    if (byte < 0x20 || byte == 0x7F) {
      out += '?';
    } else if (byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0) {
      out += '?';
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string align(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], text_width(printable(row[i])));
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string cell = printable(row[i]);
      line += cell;
      if (i + 1 < row.size()) line += std::string(widths[i] - text_width(cell) + 2, ' ');
    }
    while (line.ends_with(' ')) line.pop_back();
    out += line + "\n";
  }
  return out;
}

const json::value* value_at(const json::object& object, std::string_view path) {
  const json::object* here = &object;
  while (true) {
    // A label's own name may hold dots: the whole rest is tried first.
    if (const json::value* whole = here->if_contains(path)) return whole;
    const std::size_t dot = path.find('.');
    if (dot == std::string_view::npos) return nullptr;
    const json::value* next = here->if_contains(path.substr(0, dot));
    if (!next || !next->is_object()) return nullptr;
    here = &next->get_object();
    path.remove_prefix(dot + 1);
  }
}

std::string text_at(const json::object& object, std::string_view path) {
  const json::value* value = value_at(object, path);
  if (!value || value->is_null()) return "";
  if (value->is_string()) return std::string(value->get_string());
  return model::json_text(*value);
}

std::int64_t number_at(const json::object& object, std::string_view path) {
  const json::value* value = value_at(object, path);
  if (!value) return 0;
  if (value->is_int64()) return value->get_int64();
  if (value->is_uint64()) return static_cast<std::int64_t>(value->get_uint64());
  if (value->is_double()) return static_cast<std::int64_t>(value->get_double());
  return 0;
}

std::int64_t time_at(const json::object& object, std::string_view path) {
  const json::value* value = value_at(object, path);
  if (value && value->is_string()) {
    std::tm parts{};
    const std::string text(value->get_string());
    const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
    if (!rest) return 0;
    std::int64_t ms = 0;
    if (*rest == '.') ms = static_cast<std::int64_t>(std::strtod(rest, nullptr) * 1000);
    return static_cast<std::int64_t>(::timegm(&parts)) * 1000 + ms;
  }
  return number_at(object, path);
}

Result<std::string> apply_format(std::string_view format, const json::object& item) {
  std::string out;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] == '\\' && i + 1 < format.size() && (format[i + 1] == 'n' || format[i + 1] == 't')) {
      out += format[++i] == 'n' ? '\n' : '\t';
    } else if (format[i] == '{') {
      const std::size_t end = format.find('}', i);
      if (end == std::string_view::npos) return invalid_argument("--format: a brace is not closed");
      out += printable(text_at(item, format.substr(i + 1, end - i - 1)));
      i = end;
    } else {
      out += format[i];
    }
  }
  return out;
}

Result<std::string> listing(const json::array& items, const std::vector<Column>& columns,
                            const std::function<std::string(const json::object&)>& name_of, const ListingOptions& options) {
  if (options.json) return pretty(items) + "\n";
  std::string out;
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> titles;
  for (const Column& column : columns)
    if (!column.wide_only || options.wide) titles.push_back(column.title);
  rows.push_back(titles);
  for (const json::value& value : items) {
    if (!value.is_object()) continue;
    const json::object& item = value.get_object();
    if (options.quiet) {
      out += printable(name_of(item)) + "\n";
    } else if (!options.format.empty()) {
      DSEC_ASSIGN(const std::string line, apply_format(options.format, item));
      out += line + "\n";
    } else {
      std::vector<std::string> row;
      for (const Column& column : columns) {
        if (column.wide_only && !options.wide) continue;
        std::string cell = column.text(item);
        if (!options.wide && text_width(cell) > 48 && cell.size() < 4096) {
          std::size_t cut = 45;
          while (cut > 0 && (static_cast<unsigned char>(cell[cut]) & 0xC0) == 0x80) --cut;
          cell = cell.substr(0, cut) + "...";
        }
        row.push_back(std::move(cell));
      }
      rows.push_back(std::move(row));
    }
  }
  if (options.quiet || !options.format.empty()) return out;
  return align(rows);
}

namespace {
void print(const json::value& value, std::string& out, std::size_t depth) {
  const std::string indent((depth + 1) * 2, ' ');
  const auto close = [&](char bracket) { out += "\n" + std::string(depth * 2, ' ') + bracket; };
  if (value.is_object() && !value.get_object().empty()) {
    out += '{';
    bool first = true;
    for (const auto& [key, member] : value.get_object()) {
      out += (first ? "\n" : ",\n") + indent + json::serialize(json::value(key)) + ": ";
      first = false;
      print(member, out, depth + 1);
    }
    close('}');
  } else if (value.is_array() && !value.get_array().empty()) {
    out += '[';
    bool first = true;
    for (const auto& member : value.get_array()) {
      out += (first ? "\n" : ",\n") + indent;
      first = false;
      print(member, out, depth + 1);
    }
    close(']');
  } else {
    out += model::json_text(value);
  }
}
}  // namespace

std::string pretty(const json::value& value) {
  std::string out;
  print(value, out, 0);
  return out;
}

}  // namespace dsec::cli
