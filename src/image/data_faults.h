// The port to what readers of layer data met that they should not have.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dsec::image {

struct DataFault {
  std::int64_t at_ms = 0;
  std::string data;    // hex of the object
  std::string cgroup;  // of the reader, as /proc/<pid>/cgroup tells it; "" = not known: any user of the object
  std::string why;     // for people
};

class DataFaults {
 public:
  virtual ~DataFaults() = default;
  // Those that were not told before, oldest first. Cheap when there are none: the
  // event loop asks before it judges a result. A reader's fault is here before its
  // read returns.
  virtual std::vector<DataFault> take_new() = 0;
};

}  // namespace dsec::image
