#include "origin/memory_origin.h"

#include <cstring>

#include "origin/publish_rules.h"

namespace dsec::origin {

namespace {

class MemoryObject final : public Object {
 public:
  explicit MemoryObject(std::shared_ptr<const std::string> bytes) : bytes_(std::move(bytes)) {}
  std::uint64_t size() const override { return bytes_->size(); }
  Result<Buffer> read(std::uint64_t offset, std::size_t length, Deadline) const override {
    DSEC_TRY(check_range(size(), offset, length));
    Buffer out(length);
    std::memcpy(out.data(), bytes_->data() + offset, length);
    return out;
  }

 private:
  const std::shared_ptr<const std::string> bytes_;
};

}  // namespace

Result<std::unique_ptr<Object>> MemoryOrigin::open(const ObjectName& name, Deadline) {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(name.path());
  if (found == objects_.end()) return Error(ErrorCode::kNotFound, "no object " + name.path());
  return std::unique_ptr<Object>(std::make_unique<MemoryObject>(found->second));
}

Result<void> MemoryOrigin::publish(const ObjectName& name, const Content& content, Deadline deadline) {
  DSEC_TRY(check_publish(name, content));
  auto bytes = std::make_shared<std::string>(content.size(), '\0');
  DSEC_TRY(content.read(0, bytes->data(), bytes->size()));
  {
    const std::lock_guard lock(mutex_);
    if (objects_.emplace(name.path(), bytes).second) return {};
  }
  return compare_with_present(*this, name, content, deadline);
}

Result<ObjectList> MemoryOrigin::list(const std::string& after, std::size_t limit, Deadline) {
  ObjectList out;
  const std::lock_guard lock(mutex_);
  for (auto at = objects_.upper_bound(after); at != objects_.end(); ++at) {
    if (out.names.size() == limit) {
      out.complete = false;
      break;
    }
    DSEC_ASSIGN(ObjectName name, parse_object_path(at->first));
    out.names.push_back(std::move(name));
  }
  return out;
}

Result<void> MemoryOrigin::remove(const ObjectName& name, Deadline) {
  const std::lock_guard lock(mutex_);
  objects_.erase(name.path());
  return {};
}

Result<std::vector<Leftover>> MemoryOrigin::leftovers(Deadline) {
  const std::lock_guard lock(mutex_);
  return leftovers_;
}

Result<void> MemoryOrigin::remove_leftover(const Leftover& leftover, Deadline) {
  const std::lock_guard lock(mutex_);
  std::erase_if(leftovers_, [&](const Leftover& one) { return one.id == leftover.id; });
  return {};
}

void MemoryOrigin::leave(Leftover leftover) {
  const std::lock_guard lock(mutex_);
  leftovers_.push_back(std::move(leftover));
}

void MemoryOrigin::replace(const ObjectName& name, std::string bytes) {
  const std::lock_guard lock(mutex_);
  objects_[name.path()] = std::make_shared<const std::string>(std::move(bytes));
}

}  // namespace dsec::origin
