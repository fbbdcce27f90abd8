// What every Origin promises, asked of each adapter: a fixture makes one that is
// empty and breaks what it holds, as a store would.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "origin/origin.h"

namespace dsec::origin {

class OriginFixture {
 public:
  virtual ~OriginFixture() = default;
  virtual Origin& origin() = 0;
  // Another way to the same objects: another node.
  virtual Origin& other() = 0;
  // Other bytes below the name of an object that is there.
  virtual void replace(const ObjectName& name, const std::string& bytes) = 0;
  // What a publisher leaves that is killed after so many bytes of an object.
  virtual void leave(const ObjectName& name, const std::string& bytes) = 0;
};

struct OriginCase {
  std::string name;
  std::function<std::unique_ptr<OriginFixture>()> make;
};

inline void PrintTo(const OriginCase& one, std::ostream* out) { *out << one.name; }

class OriginContractTest : public testing::TestWithParam<OriginCase> {
 protected:
  Origin& origin() { return fixture_->origin(); }
  Origin& other() { return fixture_->other(); }
  static Deadline soon() { return Deadline::in(std::chrono::seconds(30)); }

  static std::string bytes_of(std::size_t size, std::uint32_t seed = 1) {
    std::string out(size, '\0');
    for (char& byte : out) byte = static_cast<char>((seed = seed * 1664525 + 1013904223) >> 24);
    return out;
  }
  static ObjectName data_name(const Content& content) { return {ObjectKind::kData, content.hex()}; }
  ObjectName put(const std::string& bytes) {
    const Content content = Content::of_bytes(bytes);
    const Result<void> done = origin().publish(data_name(content), content, soon());
    EXPECT_TRUE(done.ok()) << done.error().message();
    return data_name(content);
  }

  const std::unique_ptr<OriginFixture> fixture_ = GetParam().make();
};

}  // namespace dsec::origin
