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
#include "image/residue.h"
#include "model/layer.h"

namespace dsec::image {

inline constexpr std::size_t kMessageLimit = 256 << 10;

enum class ImportMode {
  kTar,         // a tar stream on standard input -> layer.meta, layer.data
  kArchive,     // a tar stream of an OCI layout or docker archive -> archive/, and what the image is made of
  kDecompress,  // a layer of one on standard input -> its tar, into the first descriptor passed
  kPart,        // that tar -> layer.meta, layer.data: this layer by itself
  kMerge,       // parts by descriptor -> layer.meta, layer.data: the image
  kInspect,     // an image in a registry: what it is made of
  kFetch,       // the same -> archive/, and what it is made of
  kDebian,      // mmdebstrap -> rootfs.tar
  kProbe,   // nothing; answers how it is confined
  kCopy,    // images by descriptor -> layer.meta, layer.data: a part with files of one of them (copy_worker.h)
  kUpper,   // standard input is the upper of a sandbox's overlay, a directory -> layer.meta, layer.data
};

// Of kUpper. The rules lie in the file `residue` of the private directory: a command
// line is no place for secrets.
struct UpperRequest {
  std::uint32_t first_id = 0;  // outside, of the sandbox's id 0
  std::uint32_t ids = 0;
  std::uint32_t run_as = 0;    // the id of the host that the worker turns into
  std::vector<std::string> remove;  // erofs/path_patterns.h
  std::vector<std::string> allow;   // where residue is none
  std::vector<std::string> parents;  // digests of the layers below
  std::string project;
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
  std::string architecture;                // kArchive: of the image to choose; "" = the node's. kMerge: of the image
  std::string diff_id;                     // kPart; the others: of a build's part that they make, else ""
  std::vector<std::uint64_t> stack;        // kMerge: which part each layer is, lowest first
  std::vector<std::uint64_t> data_files;   // kMerge: of each part; their descriptors follow its metadata's
  model::ImageConfig config;               // kMerge
  UpperRequest upper;
  std::string reference;                   // kInspect, kFetch: registry_reference.h
  std::vector<std::string> known;          // kFetch: digests of blobs that are not to be fetched
  bool plain_http = false;                 // kInspect, kFetch
  std::string hosts;                       // kInspect, kFetch: the worker's /etc/hosts
  std::string authorities = {};            // kInspect, kFetch: PEM; who may vouch for a registry besides the system's
};

// A layer of an image as its manifests name it.
struct ArchiveLayer {
  std::string path;     // in archive/
  std::string digest;   // of the file there; "" = not known
  std::string diff_id;  // of the tar in it
};
inline constexpr std::size_t kMostLayers = 512;


struct ImportCounts {
  std::uint64_t content_bytes = 0;  // of regular files, holes included
  std::uint64_t entries = 0;
  std::uint64_t devices_dropped = 0;
  std::uint64_t attributes_dropped = 0;  // extended attributes outside the allow list
  std::uint64_t owners_replaced = 0;     // ids past 65535, now nobody's
  std::uint64_t removed = 0;             // by patterns, not what lies below
};

struct ImportResult {
  ImportCounts counts;
  std::string architecture{model::node_architecture()};
  model::ImageConfig config;
  std::vector<ArchiveLayer> layers;          // of kArchive, lowest first
  std::map<std::string, std::string> facts;  // of kProbe
  std::vector<ResidueFinding> residue;       // of kUpper
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

// The rules as the worker's file holds them.
std::string encode(const std::vector<ResidueRule>& rules);
Result<std::vector<ResidueRule>> decode_residue_rules(std::string_view text);

// Lines without their newline.
std::string encode(const WorkerProgress& progress);
std::string encode(const ImportResult& result);
std::string encode(const Error& error);
Result<WorkerLine> decode_line(std::string_view line);

// Printable UTF-8 of at most `limit` bytes, for texts that a worker made.
std::string tame(std::string_view text, std::size_t limit);

}  // namespace dsec::image
