// What the files of the layers are called, and what belongs to what.
//
// <hex>.meta is a layer's metadata, named by its own digest, which is the layer's;
// <hex>.data is content, named by its own digest, which the metadata's device
// table repeats, so that layers can share it; <hex>.json is the record.
// <hex>.erofs is a layer of an earlier form: metadata and content in one file.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "erofs/device_table.h"
#include "sys/fd.h"

namespace dsec::image {

class LayerFiles {
 public:
  explicit LayerFiles(std::string directory) : directory_(std::move(directory)) {}

  const std::string& directory() const { return directory_; }
  std::string record(const std::string& digest) const { return path(digest, ".json"); }
  // Of a layer that is there, whichever form it has; of a new one.
  std::string metadata(const std::string& digest) const;
  std::string new_metadata(const std::string& digest) const { return path(digest, ".meta"); }
  std::string data(const std::string& hex) const { return directory_ + "/" + hex + ".data"; }

  // The data files that a layer's metadata names, each there and of its size.
  Result<std::vector<erofs::Device>> devices(const std::string& digest) const;
  Result<void> check_data(const std::vector<erofs::Device>& devices) const;
  // Of metadata and data together.
  Result<std::uint64_t> size(const std::string& digest, const std::vector<erofs::Device>& devices) const;

  struct Listing {
    std::set<std::string> metadata;  // digests
    std::set<std::string> records;   // digests
    std::set<std::string> data;      // hex
    std::vector<std::string> unknown;
  };
  // Removes what a record's replacement left half done on the way.
  Result<Listing> list() const;
  Result<void> sync() const;

 private:
  std::string path(const std::string& digest, const char* suffix) const;

  const std::string directory_;
};

}  // namespace dsec::image
