// The name of a step's part: equal names mean that the part does for the other.
#pragma once

#include <string>
#include <string_view>

#include "erofs/digest.h"

namespace dsec::build {

// Fields are told apart by their lengths, so that no two lists of fields are one text.
class CacheKey {
 public:
  CacheKey& add(std::string_view field) {
    hash_.update(std::to_string(field.size()) + ":");
    hash_.update(field);
    return *this;
  }
  template <typename Fields>
  CacheKey& add_all(const Fields& fields) {
    add(std::to_string(fields.size()));
    for (const auto& field : fields) add_one(field);
    return *this;
  }
  // Once.
  std::string name() { return "build:" + hash_.hex(); }

 private:
  void add_one(const std::string& field) { add(field); }
  void add_one(const std::pair<const std::string, std::string>& field) { add(field.first).add(field.second); }

  erofs::Sha256 hash_;
};

}  // namespace dsec::build
