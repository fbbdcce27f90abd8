#include "apiserver/layer_entry.h"

#include <algorithm>
#include <boost/json/array.hpp>

#include "base/encoding.h"
#include "model/json_text.h"

namespace dsec::apiserver {
namespace json = boost::json;
namespace {

std::string_view type_name(const erofs::StoredInode& node) {
  if (node.is_directory()) return "directory";
  if (node.is_symlink()) return "symlink";
  if (node.is_device()) return node.address == 0 ? "whiteout" : "device";
  return node.is_file() ? "file" : "fifo";
}

// A time of an image may be any number; what JSON carries is nanoseconds.
std::int64_t mtime_ns(const erofs::StoredInode& node) {
  constexpr std::int64_t kLimit = INT64_MAX / 1'000'000'000 - 1;
  return std::clamp(node.seconds, -kLimit, kLimit) * 1'000'000'000 + node.nanoseconds % 1'000'000'000;
}

}  // namespace

Result<LayerEntry> describe_entry(erofs::Reader& reader, std::string path, const erofs::StoredInode& node) {
  LayerEntry entry{.path = std::move(path), .node = node, .target = {}, .attributes = {}};
  if (node.is_symlink()) {
    DSEC_ASSIGN(entry.target, reader.link_target(node).within(entry.path));
  }
  DSEC_ASSIGN(entry.attributes, reader.attributes(node).within(entry.path));
  return entry;
}

json::object to_json(const LayerEntry& entry) {
  json::object out;
  model::put_bytes(out, "path", entry.path);
  model::put_bytes(out, "name", std::string_view(entry.path).substr(entry.path.size() == 1 ? 0 : entry.path.rfind('/') + 1));
  out["type"] = type_name(entry.node);
  out["size"] = entry.node.is_directory() ? 0 : entry.node.size;
  out["mode"] = model::mode_text(entry.node.mode);
  out["uid"] = entry.node.uid;
  out["gid"] = entry.node.gid;
  out["mtime_ns"] = mtime_ns(entry.node);
  out["links"] = entry.node.links;
  if (!entry.target.empty()) model::put_bytes(out, "target", entry.target);
  json::array attributes;
  for (const erofs::Attribute& attribute : entry.attributes) {
    json::object item;
    model::put_bytes(item, "name", attribute.name);
    item["value_base64"] = to_base64(attribute.value);
    attributes.push_back(std::move(item));
  }
  if (!attributes.empty()) out["attributes"] = std::move(attributes);
  return out;
}

}  // namespace dsec::apiserver
