#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "edge/wal.h"

namespace dsec::edge {

// What a compaction keeps: nothing of forgotten sandboxes but a young idempotency
// key, one edge start, and of what the next record of its kind makes void the last.
class LiveRecords final : public Wal::Filter {
 public:
  LiveRecords(std::int64_t now_ms, std::int64_t keep_keys_ms) : oldest_key_ms_(now_ms - keep_keys_ms) {}

  void note(std::uint8_t type, std::string_view body) override;
  bool keep(std::uint8_t type, std::string_view body) override;

 private:
  const std::int64_t oldest_key_ms_;
  std::size_t starts_ = 0;
  std::set<std::string> forgotten_;
  std::set<std::string> keyed_;
  std::map<std::pair<char, std::string>, std::size_t> left_;  // by kind and subject
};

}  // namespace dsec::edge
