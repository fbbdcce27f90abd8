// The faults that dsec-stored has noted, read by whoever judges results.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "image/data_faults.h"

namespace dsec::stored {

// Starts with everything that is in the file: what came while nobody read it counts too.
class FaultReader final : public image::DataFaults {
 public:
  explicit FaultReader(std::string path) : path_(std::move(path)) {}
  std::vector<image::DataFault> take_new() override;

 private:
  const std::string path_;
  std::mutex mutex_;  // guards offset_
  std::uint64_t offset_ = 0;
};

}  // namespace dsec::stored
