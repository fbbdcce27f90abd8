#include "origin/at_rest_origin.h"

#include "origin/packed_object.h"
#include "origin/publish_rules.h"

namespace dsec::origin {

namespace {

AtRest other(AtRest form) { return form == AtRest::kPlain ? AtRest::kZstd : AtRest::kPlain; }
ObjectName packed_name(const ObjectName& name) { return {ObjectKind::kPackedData, name.hex}; }

template <typename T>
bool is_missing(const Result<T>& result) {
  return !result.ok() && result.error().code() == ErrorCode::kNotFound;
}

}  // namespace

Result<std::unique_ptr<Object>> AtRestOrigin::open_data(const ObjectName& name, AtRest form, Deadline deadline) {
  if (form == AtRest::kPlain) return store_->open(name, deadline);
  DSEC_ASSIGN(std::unique_ptr<Object> packed, store_->open(packed_name(name), deadline));
  return open_packed(std::move(packed), deadline);
}

Result<std::unique_ptr<Object>> AtRestOrigin::open(const ObjectName& name, Deadline deadline) {
  if (name.kind != ObjectKind::kData) return store_->open(name, deadline);
  Result<std::unique_ptr<Object>> opened = open_data(name, form_, deadline);
  return is_missing(opened) ? open_data(name, other(form_), deadline) : std::move(opened);
}

Result<void> AtRestOrigin::publish(const ObjectName& name, const Content& content, Deadline deadline) {
  if (name.kind != ObjectKind::kData) return store_->publish(name, content, deadline);
  DSEC_TRY(check_publish(name, content));
  if (form_ == AtRest::kPlain && is_missing(open_data(name, AtRest::kZstd, deadline))) return store_->publish(name, content, deadline);
  const Result<void> present = compare_with_present(*this, name, content, deadline);
  if (!is_missing(present)) return present;
  if (form_ == AtRest::kPlain) return store_->publish(name, content, deadline);
  DSEC_ASSIGN(const Content packed, pack(content, deadline));
  const Result<void> done = store_->publish(packed_name(name), packed, deadline);
  // Another node was faster; its frames may be made by another version of zstd.
  if (!done.ok() && done.error().code() == ErrorCode::kConflict) return compare_with_present(*this, name, content, deadline);
  return done;
}

// ".dataz" sorts behind ".data" and before all else, so that the order holds.
Result<ObjectList> AtRestOrigin::list(const std::string& after, std::size_t limit, Deadline deadline) {
  ObjectList out;
  std::string last = after;
  do {
    DSEC_ASSIGN(const ObjectList part, store_->list(last, limit - out.names.size(), deadline));
    for (const ObjectName& found : part.names) {
      const ObjectName name = found.kind == ObjectKind::kPackedData ? ObjectName{ObjectKind::kData, found.hex} : found;
      const std::string before = out.names.empty() ? after : out.names.back().path();
      if (name.path() != before) out.names.push_back(name);
    }
    out.complete = part.complete;
    if (!part.names.empty()) last = part.names.back().path();
  } while (!out.complete && out.names.size() < limit);
  return out;
}

Result<void> AtRestOrigin::remove(const ObjectName& name, Deadline deadline) {
  DSEC_TRY(store_->remove(name, deadline));
  if (name.kind != ObjectKind::kData) return {};
  return store_->remove(packed_name(name), deadline);
}

}  // namespace dsec::origin
