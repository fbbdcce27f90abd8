// The port to whoever keeps descriptors alive while this process is not.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "sys/fd.h"

namespace dsec::sys {

struct KeptDescriptor {
  std::string name;
  Fd fd;
};

// Names are paths of at most 200 bytes: "layer/sha256:…". Calls block for a round trip.
class DescriptorKeeper {
 public:
  virtual ~DescriptorKeeper() = default;
  // The keeper holds a duplicate; a name that exists is replaced.
  virtual Result<void> put(const std::string& name, int fd) = 0;
  virtual Result<std::vector<KeptDescriptor>> get(const std::string& prefix) = 0;
  virtual Result<void> drop(const std::string& name) = 0;
};

}  // namespace dsec::sys
