// Files of a layer as JSON, in the form of the files of a sandbox.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "erofs/reader.h"

namespace dsec::apiserver {

// A file of a layer with what only a read can tell. Made on a worker thread.
struct LayerEntry {
  std::string path;
  erofs::StoredInode node;
  std::string target;  // of a link
  std::vector<erofs::Attribute> attributes;
};
Result<LayerEntry> describe_entry(erofs::Reader& reader, std::string path, const erofs::StoredInode& node);
boost::json::object to_json(const LayerEntry& entry);

}  // namespace dsec::apiserver
