// All objects of a store, page by page.
#pragma once

#include "origin/origin.h"

namespace dsec::origin {

// In the order of their paths, until `take` answers an error. What comes or goes
// meanwhile may be seen or not.
template <typename Take>
Result<void> each_object(Origin& origin, Deadline deadline, Take take) {
  constexpr std::size_t kPage = 1000;
  std::string after;
  for (;;) {
    DSEC_ASSIGN(const ObjectList page, origin.list(after, kPage, deadline));
    for (const ObjectName& name : page.names) DSEC_TRY(take(name));
    if (page.complete || page.names.empty()) return {};
    after = page.names.back().path();
  }
}

}  // namespace dsec::origin
