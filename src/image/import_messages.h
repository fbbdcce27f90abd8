// What the importer and its confined worker say to one another.
//
// The request is one argument of the worker's command line. The worker answers
// on a pipe by lines of JSON: any number of progress lines, then one result or
// one error. The worker has read hostile bytes, so the importer takes its lines
// as hostile too: bounded, strict, and only the listed error codes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "erofs/content_store.h"
#include "model/layer.h"

namespace dsec::image {

inline constexpr std::size_t kMessageLimit = 256 << 10;

enum class ImportMode {
  kTar,     // a tar stream on standard input -> layer.meta, layer.data
  kOci,     // a tar stream of an OCI layout or docker archive -> the same
  kDebian,  // mmdebstrap -> rootfs.tar
  kProbe,   // nothing; answers how it is confined
};

struct ImportRequest {
  ImportMode mode = ImportMode::kTar;
  model::LayerKind kind = model::LayerKind::kBase;
  std::string at;  // clean and relative, "" = the root
  std::uint64_t max_bytes = 0;
  std::uint64_t max_entries = 0;
  erofs::Profile profile = erofs::Profile::kLz4;
  std::uint64_t memory_bytes = 0;  // how much of a Debian system may stand in memory while it is built
  std::string suite;
  std::vector<std::string> packages;
};

struct ImportCounts {
  std::uint64_t content_bytes = 0;  // of regular files, holes included
  std::uint64_t entries = 0;
  std::uint64_t devices_dropped = 0;
  std::uint64_t attributes_dropped = 0;  // extended attributes outside the allow list
  std::uint64_t owners_replaced = 0;     // ids past 65535, now nobody's
};

struct ImportResult {
  ImportCounts counts;
  std::string architecture = "amd64";
  model::ImageConfig config;
  std::map<std::string, std::string> facts;  // of kProbe
};

struct WorkerProgress {
  std::string stage;
  std::uint64_t done_bytes = 0;
};

struct WorkerLine {
  std::optional<WorkerProgress> progress;
  std::optional<ImportResult> result;
  std::optional<Error> error;
};

std::string_view to_string(erofs::Profile profile);
Result<erofs::Profile> parse_profile(std::string_view text);

std::string encode(const ImportRequest& request);
Result<ImportRequest> decode_request(std::string_view text);

// Lines without their newline.
std::string encode(const WorkerProgress& progress);
std::string encode(const ImportResult& result);
std::string encode(const Error& error);
Result<WorkerLine> decode_line(std::string_view line);

// Printable UTF-8 of at most `limit` bytes, for texts that a worker made.
std::string tame(std::string_view text, std::size_t limit);

}  // namespace dsec::image
