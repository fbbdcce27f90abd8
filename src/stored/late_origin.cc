#include "stored/late_origin.h"

namespace dsec::stored {

Result<origin::Origin*> LateOrigin::opened(Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (open_) return open_.get();
  }
  DSEC_ASSIGN(std::unique_ptr<origin::Origin> fresh, opener_(deadline));
  const std::lock_guard lock(mutex_);
  if (!open_) open_ = std::move(fresh);
  return open_.get();
}

Result<std::unique_ptr<origin::Object>> LateOrigin::open(const origin::ObjectName& name, Deadline deadline) {
  DSEC_ASSIGN(origin::Origin * store, opened(deadline));
  return store->open(name, deadline);
}

Result<void> LateOrigin::publish(const origin::ObjectName& name, const origin::Content& content, Deadline deadline) {
  DSEC_ASSIGN(origin::Origin * store, opened(deadline));
  return store->publish(name, content, deadline);
}

Result<origin::ObjectList> LateOrigin::list(const std::string& after, std::size_t limit, Deadline deadline) {
  DSEC_ASSIGN(origin::Origin * store, opened(deadline));
  return store->list(after, limit, deadline);
}

Result<void> LateOrigin::remove(const origin::ObjectName& name, Deadline deadline) {
  DSEC_ASSIGN(origin::Origin * store, opened(deadline));
  return store->remove(name, deadline);
}

}  // namespace dsec::stored
