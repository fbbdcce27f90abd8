// Layers and images: what an environment is composed of.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace dsec::model {

// What this program runs on, as OCI calls it: "amd64".
std::string_view node_architecture();

// kDiff: what a sandbox wrote over the layers that it was made of. kVerifier: what
// grades a solution; no sandbox is made of it.
enum class LayerKind { kBase, kWorkspace, kToolkit, kDiff, kVerifier };

std::string_view to_string(LayerKind kind);
Result<LayerKind> parse_layer_kind(std::string_view text);

// How an image wants its processes started.
struct ImageConfig {
  std::vector<std::string> entrypoint;
  std::vector<std::string> command;
  std::map<std::string, std::string> env;
  std::string cwd;   // "" = "/"
  std::string user;  // "" = root
  // For who reads them: sandboxes do not go by these.
  std::map<std::string, std::string> labels;
  std::vector<std::string> exposed_ports;  // "8080/tcp"
  std::vector<std::string> volumes;
  std::string stop_signal;
  std::vector<std::string> shell;  // of RUN in builds over the image; none: /bin/sh -c
  bool operator==(const ImageConfig&) const = default;
};

// A file that would give its caller more rights, were it run where that counts.
struct PrivilegedFile {
  std::string path;        // bytes; one of its names
  std::uint32_t mode = 0;  // permissions with the set-id bits
  std::string capability;  // as getcap says it: "cap_net_raw=ep"; "" = none
  bool operator==(const PrivilegedFile&) const = default;
};

// Where a packed layer comes from.
struct Provenance {
  std::string sandbox;
  std::uint64_t generation = 0;  // of the sandbox's packs that the node keeps, counted from 1
  std::string project;
  std::string by;                // id of the key that asked for it
  std::vector<std::string> parents;  // digests of the layers below it there, lowest first
  bool operator==(const Provenance&) const = default;
};

// Where an image comes from that was built here.
struct BuildRecord {
  std::string dockerfile;              // digest of its text
  std::vector<std::string> steps;      // as they were run, secrets by their ids alone
  std::vector<std::string> bases;      // digests of the images that it started from
  std::vector<std::string> sandboxes;  // in which its commands ran; those of cached steps ran earlier
  std::vector<std::string> services;   // that they could reach
  std::string project;
  std::string by;                      // id of the key that asked for it
  bool operator==(const BuildRecord&) const = default;
};

// One immutable layer, named by its content.
struct LayerRecord {
  std::string digest;  // "sha256:" + 64 hex digits, of the image file
  LayerKind kind = LayerKind::kBase;
  std::uint64_t size_bytes = 0;      // of the image file
  std::uint64_t content_bytes = 0;   // of the files in it
  std::uint64_t entries = 0;
  std::uint64_t setuid_files = 0;      // inert on the host, as are
  std::uint64_t capability_files = 0;  // these
  std::vector<PrivilegedFile> privileged_files;  // both, by path; the first ones of very many
  std::string profile;                 // "plain" or "lz4"; "" = not known
  std::string architecture{node_architecture()};
  std::string source;                // what it was imported from, for people
  std::int64_t created_at_ms = 0;    // Unix time
  ImageConfig config;                // of a base
  std::vector<std::string> parts;    // digests: what an image's own layers became, as far as this node has them
  std::string diff_id;               // of such a part: the OCI layer, or "build:" and the step, that it is; "" = a layer by itself
  std::optional<Provenance> provenance;  // of one that was packed
  std::optional<BuildRecord> build;      // of an image that was built
  bool operator==(const LayerRecord&) const = default;
};

// "debian:12" -> {"debian", "12"}; no tag means "latest". Refuses what is not
// [a-z0-9][a-z0-9._/-]{0,127} and [A-Za-z0-9_][A-Za-z0-9._-]{0,127}.
struct RefName {
  std::string name;
  std::string tag;
  std::string text() const { return name + ":" + tag; }
};
Result<RefName> parse_ref(std::string_view text);
bool is_digest(std::string_view text);

}  // namespace dsec::model
