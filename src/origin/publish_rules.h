// What every adapter asks of a call of publish() in the same way.
#pragma once

#include "origin/origin.h"

namespace dsec::origin {

// kInvalidArgument when `name` names its bytes and these are others.
Result<void> check_publish(const ObjectName& name, const Content& content);
// Reads what has the name already: success when equal, kConflict when not,
// kNotFound when it is gone again.
Result<void> compare_with_present(Origin& origin, const ObjectName& name, const Content& content, Deadline deadline);
// Both must lie inside the object, as callers of Object::read promise.
Result<void> check_range(std::uint64_t size, std::uint64_t offset, std::size_t length);

}  // namespace dsec::origin
