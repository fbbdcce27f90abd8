// What a container's record() holds: enough to find it again, and to tell it
// from another sandbox that has its slot or its pid by now.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace dsec::backend::container {

struct Record {
  std::string slot;
  std::uint64_t generation = 0;
  std::uint32_t pid = 0;
  std::uint64_t identity = 0;  // sys::process_identity
  std::string boot_id;
  std::string socket_name;  // below <run>/a
  std::uint64_t oom_kills = 0;  // counted before
  std::uint32_t first_id = 0;   // the host's number of the sandbox's id 0; 0 = of an earlier version, not known
  std::string upper_handle;     // of an upper in memory; "" = none, or not known
};

std::string encode(const Record& record);
Result<Record> decode_record(std::string_view bytes);

}  // namespace dsec::backend::container
