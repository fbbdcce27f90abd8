// The part of the check that needs no inode.
#pragma once

#include "erofs/checker.h"
#include "erofs/occupancy.h"
#include "erofs/reader.h"

namespace dsec::erofs {

// What is wrong and where, or nothing. `occupancy` gets what the superblock
// and the tables behind it take.
std::optional<Problem> check_superblock(const Reader& reader, std::string_view first_block, const std::vector<std::uint64_t>& device_bytes, Occupancy& occupancy);

}  // namespace dsec::erofs
