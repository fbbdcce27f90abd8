// The files and directories of cgroup hierarchies, for the parts of CgroupTree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sys/fd.h"

namespace dsec::sys {

constexpr const char* kKilledMark = "trusted.dsec.killed";
constexpr const char* kIdleMark = "trusted.dsec.idle";

// One that is there already is fine.
Result<void> make_dir(int dir, const std::string& name);
// One that is not there is fine; kConflict for one that is in use.
Result<void> remove_dir(int dir, const std::string& name);
Result<Fd> open_dir(int dir, const std::string& name);
// The names of the cgroups below; none when `dir` cannot be read.
std::vector<std::string> children(int dir);

// 0 for what cannot be read.
std::uint64_t number(std::string_view text);
std::uint64_t read_number(int dir, const std::string& path);
std::uint64_t read_field(int dir, const std::string& path, std::string_view key);
// total= of the "full" line of a pressure file.
std::uint64_t full_stall(int dir, const std::string& path);

}  // namespace dsec::sys
