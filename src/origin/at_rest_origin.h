// A store whose data and metadata objects may be compressed: to who uses it they
// are as if they were not.
//
// Publishes them in one form and reads both, so that nodes of either setting
// share a store. The other form of an object counts as the object: it is
// compared, listed and removed like it, and not stored a second time.
#pragma once

#include <memory>

#include "origin/origin.h"
#include "origin/packed_object.h"

namespace dsec::origin {

enum class AtRest { kPlain, kZstd };

class AtRestOrigin final : public Origin {
 public:
  AtRestOrigin(std::unique_ptr<Origin> store, AtRest form, int level = kUsualLevel) : store_(std::move(store)), form_(form), level_(level) {}

  Result<std::unique_ptr<Object>> open(const ObjectName& name, Deadline deadline) override;
  Result<void> publish(const ObjectName& name, const Content& content, Deadline deadline) override;
  Result<ObjectList> list(const std::string& after, std::size_t limit, Deadline deadline) override;
  Result<void> remove(const ObjectName& name, Deadline deadline) override;
  Result<std::vector<Leftover>> leftovers(Deadline deadline) override;
  Result<void> remove_leftover(const Leftover& leftover, Deadline deadline) override;
  std::string description() const override { return store_->description(); }

 private:
  Result<std::unique_ptr<Object>> open_form(const ObjectName& name, AtRest form, Deadline deadline);

  const std::unique_ptr<Origin> store_;
  const AtRest form_;
  const int level_;  // of what is published
};

}  // namespace dsec::origin
