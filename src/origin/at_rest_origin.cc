#include "origin/at_rest_origin.h"

#include "origin/publish_rules.h"

namespace dsec::origin {

namespace {

AtRest other(AtRest form) { return form == AtRest::kPlain ? AtRest::kZstd : AtRest::kPlain; }
// All that is large. Both sort behind what they hold, with nothing between.
bool may_be_packed(ObjectKind kind) { return kind == ObjectKind::kData || kind == ObjectKind::kMetadata; }
ObjectName packed_name(const ObjectName& name) { return {name.kind == ObjectKind::kData ? ObjectKind::kPackedData : ObjectKind::kPackedMetadata, name.hex}; }
ObjectName raw_name(const ObjectName& name) {
  if (name.kind == ObjectKind::kPackedData) return {ObjectKind::kData, name.hex};
  if (name.kind == ObjectKind::kPackedMetadata) return {ObjectKind::kMetadata, name.hex};
  return name;
}

// Before the name of a leftover of the packed form.
constexpr std::string_view kPackedMark = "packed ";

template <typename T>
bool is_missing(const Result<T>& result) {
  return !result.ok() && result.error().code() == ErrorCode::kNotFound;
}

}  // namespace

Result<std::unique_ptr<Object>> AtRestOrigin::open_form(const ObjectName& name, AtRest form, Deadline deadline) {
  if (form == AtRest::kPlain) return store_->open(name, deadline);
  DSEC_ASSIGN(std::unique_ptr<Object> packed, store_->open(packed_name(name), deadline));
  return open_packed(std::move(packed), deadline);
}

Result<std::unique_ptr<Object>> AtRestOrigin::open(const ObjectName& name, Deadline deadline) {
  if (!may_be_packed(name.kind)) return store_->open(name, deadline);
  Result<std::unique_ptr<Object>> opened = open_form(name, form_, deadline);
  return is_missing(opened) ? open_form(name, other(form_), deadline) : std::move(opened);
}

Result<void> AtRestOrigin::publish(const ObjectName& name, const Content& content, Deadline deadline) {
  if (!may_be_packed(name.kind)) return store_->publish(name, content, deadline);
  DSEC_TRY(check_publish(name, content));
  if (form_ == AtRest::kPlain && is_missing(open_form(name, AtRest::kZstd, deadline))) return store_->publish(name, content, deadline);
  const Result<void> present = compare_with_present(*this, name, content, deadline);
  if (!is_missing(present)) return present;
  if (form_ == AtRest::kPlain) return store_->publish(name, content, deadline);
  DSEC_ASSIGN(const Content packed, pack(content, deadline, level_));
  const Result<void> done = store_->publish(packed_name(name), packed, deadline);
  // Another node was faster; its frames may be made by another version of zstd.
  if (!done.ok() && done.error().code() == ErrorCode::kConflict) return compare_with_present(*this, name, content, deadline);
  return done;
}

// A packed object sorts right behind the same one unpacked, so that the order holds.
Result<ObjectList> AtRestOrigin::list(const std::string& after, std::size_t limit, Deadline deadline) {
  ObjectList out;
  std::string last = after;
  do {
    DSEC_ASSIGN(const ObjectList part, store_->list(last, limit - out.names.size(), deadline));
    for (const ObjectName& found : part.names) {
      const ObjectName name = raw_name(found);
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
  if (!may_be_packed(name.kind)) return {};
  return store_->remove(packed_name(name), deadline);
}

Result<std::vector<Leftover>> AtRestOrigin::leftovers(Deadline deadline) {
  DSEC_ASSIGN(std::vector<Leftover> out, store_->leftovers(deadline));
  for (Leftover& one : out)
    if (one.of && one.of->kind == ObjectKind::kPackedData) one.id.insert(0, kPackedMark), one.of->kind = ObjectKind::kData;
  return out;
}

Result<void> AtRestOrigin::remove_leftover(const Leftover& leftover, Deadline deadline) {
  if (!leftover.of || !leftover.id.starts_with(kPackedMark)) return store_->remove_leftover(leftover, deadline);
  Leftover packed = leftover;
  packed.id.erase(0, kPackedMark.size());
  packed.of = packed_name(*leftover.of);
  return store_->remove_leftover(packed, deadline);
}

}  // namespace dsec::origin
