#include "origin/late_origin.h"

namespace dsec::origin {

Result<Origin*> LateOrigin::opened(Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (open_) return open_.get();
  }
  DSEC_ASSIGN(std::unique_ptr<Origin> fresh, opener_(deadline));
  const std::lock_guard lock(mutex_);
  if (!open_) open_ = std::move(fresh);
  return open_.get();
}

Result<std::unique_ptr<Object>> LateOrigin::open(const ObjectName& name, Deadline deadline) {
  DSEC_ASSIGN(Origin * store, opened(deadline));
  return store->open(name, deadline);
}

Result<void> LateOrigin::publish(const ObjectName& name, const Content& content, Deadline deadline) {
  DSEC_ASSIGN(Origin * store, opened(deadline));
  return store->publish(name, content, deadline);
}

Result<ObjectList> LateOrigin::list(const std::string& after, std::size_t limit, Deadline deadline) {
  DSEC_ASSIGN(Origin * store, opened(deadline));
  return store->list(after, limit, deadline);
}

Result<void> LateOrigin::remove(const ObjectName& name, Deadline deadline) {
  DSEC_ASSIGN(Origin * store, opened(deadline));
  return store->remove(name, deadline);
}

Result<std::vector<Leftover>> LateOrigin::leftovers(Deadline deadline) {
  DSEC_ASSIGN(Origin * store, opened(deadline));
  return store->leftovers(deadline);
}

Result<void> LateOrigin::remove_leftover(const Leftover& leftover, Deadline deadline) {
  DSEC_ASSIGN(Origin * store, opened(deadline));
  return store->remove_leftover(leftover, deadline);
}

}  // namespace dsec::origin
