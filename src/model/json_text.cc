#include "model/json_text.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "base/encoding.h"

namespace dsec::model {

namespace json = boost::json;

namespace {

void add(std::string& out, const json::value& value);

void add(std::string& out, const json::array& array) {
  out += '[';
  for (std::size_t i = 0; i < array.size(); ++i) {
    if (i != 0) out += ',';
    add(out, array[i]);
  }
  out += ']';
}

void add(std::string& out, const json::object& object) {
  out += '{';
  bool first = true;
  for (const auto& field : object) {
    if (!first) out += ',';
    first = false;
    out += json::serialize(field.key());
    out += ':';
    add(out, field.value());
  }
  out += '}';
}

void add(std::string& out, const json::value& value) {
  switch (value.kind()) {
    case json::kind::array: return add(out, value.get_array());
    case json::kind::object: return add(out, value.get_object());
    case json::kind::double_: out += fmt::format("{}", value.get_double()); return;
    default: out += json::serialize(value); return;
  }
}

}  // namespace

std::string json_text(const json::value& value) {
  std::string out;
  add(out, value);
  return out;
}

std::string json_text(const json::object& object) {
  std::string out;
  add(out, object);
  return out;
}

void put_bytes(json::object& out, std::string_view field, std::string_view bytes) {
  bool lossy = false;
  out[field] = to_utf8(bytes, &lossy);
  if (lossy) out[std::string(field) + "_base64"] = to_base64(bytes);
}

std::string mode_text(std::uint32_t mode) { return fmt::format("{:04o}", mode & 07777); }

}  // namespace dsec::model
