// Label selectors as kubectl's: "job=j1,stage!=eval,team in (a,b),!old".
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace dsec::model {

class Selector {
 public:
  static Result<Selector> parse(std::string_view text);
  bool matches(const std::map<std::string, std::string>& labels) const;

 private:
  enum class Operator { kEquals, kNotEquals, kIn, kNotIn, kExists, kNotExists };
  struct Requirement {
    std::string key;
    Operator op;
    std::vector<std::string> values;
  };
  std::vector<Requirement> requirements_;
};

}  // namespace dsec::model
