// What this node can give other nodes of data objects: chunks of its cache, and
// objects that are whole in its layers. Blocks for local files only.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "stored/blob_table.h"

namespace dsec::stored {

// Safe on any thread.
class LocalChunks {
 public:
  // `layers` is the folder of whole objects. Outlived by the table.
  LocalChunks(BlobTable& blobs, std::string layers) : blobs_(blobs), layers_(std::move(layers)) {}

  // One bit for each chunk, the lowest of the first byte for the first one.
  // kNotFound when nothing of the object is here.
  Result<std::string> bits(const std::string& hex) const;
  // Chunks behind one another, at most Blob::kMaxRun. kNotFound when one of them is not here.
  Result<std::string> read(const std::string& hex, ChunkRun run) const;

 private:
  Result<CacheFile> whole(const std::string& hex) const;

  BlobTable& blobs_;
  const std::string layers_;
};

}  // namespace dsec::stored
