// The adapters that the contract of Origin is asked of.
#pragma once

#include "origin/memory_origin.h"
#include "origin_contract.h"

namespace dsec::origin {

class MemoryFixture final : public OriginFixture {
 public:
  Origin& origin() override { return origin_; }
  Origin& other() override { return origin_; }
  void replace(const ObjectName& name, const std::string& bytes) override { origin_.replace(name, bytes); }

 private:
  MemoryOrigin origin_;
};

inline std::vector<OriginCase> origin_cases() {
  return {{"memory", [](std::string*) -> std::unique_ptr<OriginFixture> { return std::make_unique<MemoryFixture>(); }}};
}

}  // namespace dsec::origin
