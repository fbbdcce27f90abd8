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
#include <string_view>
#include <vector>

#include "base/result.h"
#include "erofs/device_table.h"
#include "sys/fd.h"

namespace dsec::image {

// Where data can be read that no file of this node has whole.
class DataOnDemand {
 public:
  struct File {
    std::string path;  // for this process; it opens for reading, and each read may wait for the store
    std::uint64_t bytes = 0;
  };
  virtual ~DataOnDemand() = default;
  // Looks at this node only. kNotFound for what cannot be read on demand either.
  virtual Result<File> find(const std::string& hex) = 0;
  // From now on it can be read. `index` is the bytes of its chunk index
  // (origin/chunk_index.h), which the caller vouches for.
  virtual Result<void> serve(const std::string& hex, std::string_view index) = 0;
  // Nobody needs it any more. Success when there was nothing.
  virtual Result<void> withdraw(const std::string& hex) = 0;
  virtual Result<std::vector<std::string>> list() const = 0;
};

class LayerFiles {
 public:
  // `on_demand`, if there is one, outlives this.
  explicit LayerFiles(std::string directory, DataOnDemand* on_demand = nullptr) : directory_(std::move(directory)), on_demand_(on_demand) {}

  const std::string& directory() const { return directory_; }
  std::string record(const std::string& digest) const { return path(digest, ".json"); }
  // Of a layer that is there, whichever form it has; of a new one.
  std::string metadata(const std::string& digest) const;
  std::string new_metadata(const std::string& digest) const { return path(digest, ".meta"); }
  std::string data(const std::string& hex) const { return directory_ + "/" + hex + ".data"; }
  // The same to read: the file of the layers when it is there, else the one that is filled on demand.
  Result<std::string> readable_data(const std::string& hex) const;
  Result<void> remove_data(const std::string& hex) const;

  // The data files that a layer's metadata names, each there, or to be had on demand, and of its size.
  Result<std::vector<erofs::Device>> devices(const std::string& digest) const;
  Result<void> check_data(const std::vector<erofs::Device>& devices) const;
  // Whether it is a file of the layers, of its size.
  bool is_whole(const erofs::Device& device) const;
  // Of metadata and data together.
  Result<std::uint64_t> size(const std::string& digest, const std::vector<erofs::Device>& devices) const;

  struct Listing {
    std::set<std::string> metadata;  // digests
    std::set<std::string> records;   // digests
    std::set<std::string> data;      // hex; also what can be read on demand
    std::vector<std::string> unknown;
  };
  // Removes what a record's replacement left half done on the way.
  Result<Listing> list() const;
  Result<void> sync() const;

 private:
  std::string path(const std::string& digest, const char* suffix) const;

  Result<DataOnDemand::File> find_data(const std::string& hex) const;

  const std::string directory_;
  DataOnDemand* const on_demand_;
};

}  // namespace dsec::image
