// SOURCE of an import, and the stream of it that is sent.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "cli/tar_writer.h"

namespace dsec::cli {

enum class SourceKind {
  kTree,           // a directory or tar file, read here
  kOci,            // oci:PATH, an OCI layout (directory or tar), read here
  kDockerArchive,  // docker-archive:PATH, what `docker save` writes, read here
  kServerSide,     // debian:… and docker://…, fetched or built by the server
};

struct SourceSpec {
  SourceKind kind = SourceKind::kTree;
  std::string path;  // for the server-side kinds the whole text
};
Result<SourceSpec> parse_source(const std::string& text);

// "registry.example:5000/team/app@sha256:…" -> "team/app:latest": what a pull calls an
// image that is given no other name.
std::string name_of_reference(std::string_view reference);

class SourceStream {
 public:
  // `owner` replaces the owners of a directory's entries; a tar is sent as it is.
  static Result<std::unique_ptr<SourceStream>> open(const SourceSpec& source, std::optional<Owner> owner);
  Result<std::string> next();
  std::uint64_t total_bytes() const { return total_; }  // 0 = unknown
  std::uint64_t sent_bytes() const { return sent_; }

 private:
  std::string path_;
  sys::Fd file_;
  std::unique_ptr<TarWriter> tree_;
  std::uint64_t total_ = 0;
  std::uint64_t sent_ = 0;
};

}  // namespace dsec::cli
