#include "model/strict_object.h"

#include <cmath>
#include <limits>

namespace dsec::model {

namespace json = boost::json;

namespace {

// Of a text that has been parsed: outside of strings each ":" is a field.
std::size_t fields_in_text(std::string_view text) {
  std::size_t count = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') in_string = !in_string;
    else if (in_string && text[i] == '\\') ++i;
    else if (!in_string && text[i] == ':') ++count;
  }
  return count;
}

std::size_t fields_in_value(const json::value& value) {
  std::size_t count = 0;
  if (const json::array* array = value.if_array()) {
    for (const json::value& item : *array) count += fields_in_value(item);
  } else if (const json::object* object = value.if_object()) {
    count = object->size();
    for (const auto& field : *object) count += fields_in_value(field.value());
  }
  return count;
}

}  // namespace

Result<json::value> parse_json(std::string_view text) {
  json::error_code ec;
  json::parse_options options;
  options.max_depth = 32;
  json::value value = json::parse(json::string_view(text.data(), text.size()), ec, {}, options);
  if (ec) return invalid_argument("not valid JSON: " + ec.message());
  // The library keeps the last of two fields of one name; another reader of the
  // same bytes may keep the first.
  if (fields_in_text(text) != fields_in_value(value)) return invalid_argument("an object has two fields of one name");
  return value;
}

StrictObject::StrictObject(const json::value& value, std::string where) : where_(std::move(where)) {
  object_ = value.if_object();
  if (!object_)
    error_ = invalid_argument(where_.empty() ? "the body must be a JSON object" : where_ + ": must be an object");
  else
    seen_.resize(object_->size());
}

std::string StrictObject::path(std::string_view name) const {
  return where_.empty() ? std::string(name) : where_ + "." + std::string(name);
}

void StrictObject::fail(std::string message) { fail(invalid_argument(std::move(message))); }

void StrictObject::fail(Error error) {
  if (!error_) error_ = std::move(error);
}

bool StrictObject::has(std::string_view name) const {
  if (!object_) return false;
  const auto found = object_->find(json::string_view(name.data(), name.size()));
  return found != object_->end() && !found->value().is_null();
}

const json::value* StrictObject::take(std::string_view name) {
  if (!object_) return nullptr;
  const auto found = object_->find(json::string_view(name.data(), name.size()));
  if (found == object_->end()) return nullptr;
  seen_[static_cast<std::size_t>(found - object_->begin())] = true;
  if (error_ || found->value().is_null()) return nullptr;
  return &found->value();
}

const json::array* StrictObject::take_array(std::string_view name) {
  const json::value* value = take(name);
  if (!value) return nullptr;
  if (!value->is_array()) {
    fail(path(name) + ": must be an array");
    return nullptr;
  }
  return &value->get_array();
}

void StrictObject::require(std::string_view name) {
  if (!has(name)) fail(path(name) + ": is required");
}

void StrictObject::read(std::string_view name, std::string& out) {
  const json::value* value = take(name);
  if (!value) return;
  if (const json::string* text = value->if_string())
    out.assign(text->data(), text->size());
  else
    fail(path(name) + ": must be a string");
}

void StrictObject::read(std::string_view name, bool& out) {
  const json::value* value = take(name);
  if (!value) return;
  if (const bool* flag = value->if_bool())
    out = *flag;
  else
    fail(path(name) + ": must be true or false");
}

void StrictObject::read(std::string_view name, double& out) {
  const json::value* value = take(name);
  if (!value) return;
  json::error_code ec;
  const double number = value->to_number<double>(ec);
  if (ec || !std::isfinite(number))
    fail(path(name) + ": must be a number");
  else
    out = number;
}

void StrictObject::read(std::string_view name, std::int64_t& out) {
  const json::value* value = take(name);
  if (!value) return;
  json::error_code ec;
  const std::int64_t number = value->to_number<std::int64_t>(ec);
  if (ec)
    fail(path(name) + ": must be a whole number");
  else
    out = number;
}

void StrictObject::read(std::string_view name, std::uint64_t& out) {
  const json::value* value = take(name);
  if (!value) return;
  json::error_code ec;
  const std::uint64_t number = value->to_number<std::uint64_t>(ec);
  if (ec)
    fail(path(name) + ": must be a whole number, not below 0");
  else
    out = number;
}

void StrictObject::read(std::string_view name, std::uint16_t& out) {
  std::int64_t number = out;
  read(name, number);
  if (error_) return;
  if (number < 0 || number > std::numeric_limits<std::uint16_t>::max())
    fail(path(name) + ": must be between 0 and 65535");
  else
    out = static_cast<std::uint16_t>(number);
}

void StrictObject::read(std::string_view name, std::vector<std::string>& out) {
  const json::array* items = take_array(name);
  if (!items) return;
  std::vector<std::string> texts;
  texts.reserve(items->size());
  for (std::size_t i = 0; i < items->size(); ++i) {
    const json::string* text = (*items)[i].if_string();
    if (!text) return fail(path(name) + "[" + std::to_string(i) + "]: must be a string");
    texts.emplace_back(text->data(), text->size());
  }
  out = std::move(texts);
}

void StrictObject::read(std::string_view name, std::map<std::string, std::string>& out) {
  const json::value* value = take(name);
  if (!value) return;
  const json::object* object = value->if_object();
  if (!object) return fail(path(name) + ": must be an object of strings");
  std::map<std::string, std::string> pairs;
  for (const auto& [key, item] : *object) {
    const json::string* text = item.if_string();
    if (!text) return fail(path(name) + "." + std::string(key) + ": must be a string");
    pairs.emplace(std::string(key), std::string(text->data(), text->size()));
  }
  out = std::move(pairs);
}

Result<void> StrictObject::finish() {
  if (error_) return *error_;
  std::size_t i = 0;
  for (const auto& field : *object_) {
    if (!seen_[i++]) return invalid_argument("unknown field \"" + path(std::string(field.key())) + "\"");
  }
  return {};
}

}  // namespace dsec::model
