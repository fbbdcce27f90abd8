// Layers laid over one another become one image, by their metadata alone.
//
// Every file refers to the data where its layer has it, compressed or not. What a
// layer hides (whiteouts, opaque directories) is gone, and so are the marks:
// nothing lies below the result. Paths lead through links of lower layers as they
// do when the archives are unpacked one over the other. Content of which there is
// little in one data file is copied into the image's own, so that no image has more
// than 16 of them, and none for next to nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "erofs/reader.h"
#include "erofs/writer.h"

namespace dsec::erofs {

struct MergeOptions {
  std::string at;  // where the layers' root stands in the image; clean and relative
  std::uint64_t copied_below_bytes = 256 << 10;  // content of one data file that is in use
};

struct MergeCounts {
  std::uint64_t entries = 0;
  std::uint64_t content_bytes = 0;   // of files, holes included
  std::uint64_t copied_bytes = 0;    // of them, written to the image's own data
  std::int64_t newest_seconds = 0;   // of any layer's entry
};

// What WriterOptions::parents has to be: each data file of the layers, once.
std::vector<ParentData> data_of(const std::vector<Reader*>& layers);

// `layers`, lowest first, have their data at hand, and the checker found them
// sound. `writer` is empty, was made with Overlaps::kReplace and data_of(layers),
// and is finished by the caller. Equal layers make equal images. After an error
// the writer is of no use.
Result<MergeCounts> merge_layers(const std::vector<Reader*>& layers, const MergeOptions& options, Writer& writer);

}  // namespace dsec::erofs
