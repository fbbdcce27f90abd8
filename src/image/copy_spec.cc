#include "image/copy_spec.h"

#include <boost/json.hpp>

#include "base/encoding.h"
#include "model/strict_object.h"

namespace dsec::image {

namespace json = boost::json;

std::string encode(const CopySpec& spec) {
  json::array sources;
  for (const std::string& source : spec.sources) sources.emplace_back(to_base64(source));
  json::array files;
  for (const InlineFile& file : spec.files) files.push_back(json::object{{"name", to_base64(file.name)}, {"content", to_base64(file.content)}});
  json::array links;
  for (const InlineLink& link : spec.links) links.push_back(json::object{{"path", to_base64(link.path)}, {"target", to_base64(link.target)}});
  json::object out{{"sources", std::move(sources)},
                   {"links", std::move(links)},
                   {"files", std::move(files)},
                   {"destination", to_base64(spec.destination)},
                   {"directory", spec.directory == CopySpec::Directory::kMake},
                   {"owner", to_base64(spec.owner)},
                   {"keep_owners", spec.keep_owners},
                   {"unpack", spec.unpack}};
  if (spec.mode) out["mode"] = *spec.mode;
  return json::serialize(out);
}

Result<CopySpec> decode_copy_spec(std::string_view text) {
  DSEC_ASSIGN(const json::value value, model::parse_json(text).within("what to copy"));
  CopySpec out;
  std::vector<std::string> sources;
  std::string destination;
  std::string owner;
  bool directory = false;
  std::uint16_t mode = 0;
  model::StrictObject fields(value, "");
  fields.read("sources", sources);
  const json::array* files = fields.take_array("files");
  const json::array* links = fields.take_array("links");
  fields.read("destination", destination);
  fields.read("directory", directory);
  fields.read("owner", owner);
  fields.read("keep_owners", out.keep_owners);
  fields.read("unpack", out.unpack);
  if (fields.has("mode")) {
    fields.read("mode", mode);
    out.mode = mode;
  }
  DSEC_TRY(fields.finish());
  for (const std::string& source : sources) {
    DSEC_ASSIGN(std::string bytes, from_base64(source));
    out.sources.push_back(std::move(bytes));
  }
  if (files != nullptr) {
    for (const json::value& item : *files) {
      InlineFile file;
      std::string name;
      std::string content;
      model::StrictObject inner(item, "files");
      inner.read("name", name);
      inner.read("content", content);
      DSEC_TRY(inner.finish());
      DSEC_ASSIGN(file.name, from_base64(name));
      DSEC_ASSIGN(file.content, from_base64(content));
      out.files.push_back(std::move(file));
    }
  }
  if (links != nullptr) {
    for (const json::value& item : *links) {
      std::string path;
      std::string target;
      model::StrictObject inner(item, "links");
      inner.read("path", path);
      inner.read("target", target);
      DSEC_TRY(inner.finish());
      InlineLink link;
      DSEC_ASSIGN(link.path, from_base64(path));
      DSEC_ASSIGN(link.target, from_base64(target));
      out.links.push_back(std::move(link));
    }
  }
  DSEC_ASSIGN(out.destination, from_base64(destination));
  DSEC_ASSIGN(out.owner, from_base64(owner));
  if (directory) out.directory = CopySpec::Directory::kMake;
  return out;
}

}  // namespace dsec::image
