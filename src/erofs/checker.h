// Decides whether an image's metadata may meet the kernel.
//
// The kernel's EROFS code is told to believe an image that its administrator
// mounts. So what comes from elsewhere is held here against the one form that
// our writer emits, before the first mount: every inode is reached exactly
// once through names in order, every byte of the metadata belongs to exactly
// one structure or is zero, every extent lies on its device and shares blocks
// only with an equal one, and no feature, attribute or file type occurs that
// the writer does not write. Data files are not read: their digests stand in
// the device table.
//
// Time and memory are linear in the metadata's size (but for one sort),
// whatever the image says of itself. Safe on hostile bytes; never recurses.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "erofs/format.h"
#include "erofs/source.h"

namespace dsec::erofs {

struct CheckLimits {
  std::uint64_t metadata_bytes = std::uint64_t{4} << 30;
  std::uint64_t inodes = 16'000'000;
  std::uint64_t file_bytes = std::uint64_t{1} << 44;
};

// The first thing that is wrong.
struct Problem {
  std::uint64_t offset = 0;  // in the metadata
  std::string path;          // of the file, or of the directory that it is in; bytes, cut in front when very long
  std::string what;
  std::string text() const;  // "/etc: . is another inode (byte 4096)"
  bool operator==(const Problem&) const = default;
};

// A regular file with a set-id bit or a file capability.
struct PrivilegedInode {
  std::string path;        // the first name that was met
  std::uint32_t mode = 0;  // permissions
  std::string capability;  // the attribute's value; "" = none
};

struct ImageFacts {
  std::uint64_t inodes = 0;
  std::uint64_t directories = 0;
  std::uint64_t files = 0;
  std::uint64_t whiteouts = 0;
  std::uint64_t setuid_files = 0;      // setuid or setgid files, inert under nosuid
  std::uint64_t capability_files = 0;  // with security.capability, likewise
  std::vector<PrivilegedInode> privileged;  // the first of both; their paths are 128 KiB at most
  std::uint64_t content_bytes = 0;     // of all files, holes included
  std::vector<DeviceSlot> devices;
};

struct Verdict {
  std::optional<Problem> problem;  // nullopt: it may be mounted
  ImageFacts facts;                // as far as the check came
  bool sound() const { return !problem; }
};

// `device_bytes`: sizes of the data files where they are known, in the order of
// the device table; else empty. An error only when reading itself fails.
Result<Verdict> check_image(std::unique_ptr<Source> metadata, const std::vector<std::uint64_t>& device_bytes = {}, const CheckLimits& limits = {});

}  // namespace dsec::erofs
