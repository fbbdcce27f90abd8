#include "origin/publish_rules.h"

#include <algorithm>
#include <cstring>

namespace dsec::origin {

namespace {
constexpr std::uint64_t kPart = 4 << 20;
}

Result<void> check_publish(const ObjectName& name, const Content& content) {
  if (names_its_bytes(name.kind) && name.hex != content.hex()) return invalid_argument("the bytes for " + name.path() + " have another digest: " + content.hex());
  return {};
}

Result<void> compare_with_present(Origin& origin, const ObjectName& name, const Content& content, Deadline deadline) {
  const auto differs = [&name] { return Error(ErrorCode::kConflict, name.path() + " is in the store already, with other bytes"); };
  DSEC_ASSIGN(const std::unique_ptr<Object> present, origin.open(name, deadline));
  if (present->size() != content.size()) return differs();
  Buffer ours(std::min(kPart, content.size()));
  for (std::uint64_t at = 0; at < content.size(); at += kPart) {
    const std::size_t length = std::min(kPart, content.size() - at);
    DSEC_ASSIGN(const Buffer theirs, present->read(at, length, deadline));
    DSEC_TRY(content.read(at, ours.data(), length));
    if (std::memcmp(theirs.data(), ours.data(), length) != 0) return differs();
  }
  return {};
}

Result<void> check_range(std::uint64_t size, std::uint64_t offset, std::size_t length) {
  if (offset > size || length > size - offset) return invalid_argument("read past the end of the object");
  return {};
}

}  // namespace dsec::origin
