#include "origin/lease.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <sstream>
#include <thread>
#include <utility>

#include "base/fail_point.h"
#include "model/json.h"
#include "model/layer.h"
#include "model/strict_object.h"
#include "sys/file.h"

namespace dsec::origin {

namespace json = boost::json;

namespace {

constexpr std::size_t kMaxNode = 128;
constexpr std::size_t kMaxStateBytes = 1 << 20;

Result<Lease> parse(std::string_view text) {
  DSEC_ASSIGN(const json::value value, model::parse_json(text));
  Lease out;
  std::vector<std::string> hexes;
  model::StrictObject fields(value, "");
  fields.read("node", out.node);
  fields.read("written_ms", out.written_ms);
  fields.read("expires_ms", out.expires_ms);
  fields.read("hexes", hexes);
  DSEC_TRY(fields.finish());
  if (out.node.empty() || out.node.size() > kMaxNode) return invalid_argument("node: from 1 to " + std::to_string(kMaxNode) + " bytes");
  for (std::string& hex : hexes) {
    if (!model::is_digest("sha256:" + hex)) return invalid_argument("hexes: not a digest");
    out.hexes.insert(std::move(hex));
  }
  return out;
}

}  // namespace

std::string to_text(const Lease& lease) {
  json::array hexes;
  for (const std::string& hex : lease.hexes) hexes.emplace_back(hex);
  return json::serialize(json::object{{"node", lease.node}, {"written_ms", lease.written_ms}, {"expires_ms", lease.expires_ms}, {"hexes", std::move(hexes)}});
}

Result<Lease> parse_lease(std::string_view text) {
  Result<Lease> parsed = parse(text);
  if (parsed.ok()) return parsed;
  return Error(ErrorCode::kDataFault, "not a lease: " + parsed.error().message());
}

LeaseHolder::Held& LeaseHolder::Held::operator=(Held&& other) noexcept {
  if (this == &other) return *this;
  release();
  holder_ = std::exchange(other.holder_, nullptr);
  hexes_ = std::move(other.hexes_);
  return *this;
}

void LeaseHolder::Held::release() {
  if (holder_ == nullptr) return;
  const std::lock_guard lock(holder_->mutex_);
  for (const std::string& hex : hexes_)
    if (const auto found = holder_->held_.find(hex); --found->second == 0) holder_->held_.erase(found);
  holder_ = nullptr;
}

std::set<std::string> LeaseHolder::held() const {
  const std::lock_guard lock(mutex_);
  std::set<std::string> out;
  for (const auto& [hex, count] : held_) out.insert(hex);
  return out;
}

std::int64_t LeaseHolder::now_ms() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(clock_.wall_now().time_since_epoch()).count();
}

Result<LeaseHolder::Held> LeaseHolder::hold(std::vector<std::string> hexes, Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    for (const std::string& hex : hexes) held_[hex]++;
  }
  Held out(*this, hexes);
  std::vector<std::string> added;
  {
    const std::lock_guard writing(writing_);
    DSEC_TRY(find_earlier(deadline));
    const bool valid = written_.expires_ms > now_ms();
    std::copy_if(hexes.begin(), hexes.end(), std::back_inserter(added), [&](const std::string& hex) { return !valid || !written_.hexes.contains(hex); });
    if (added.empty()) return out;
    std::set<std::string> all = written_.hexes;
    all.merge(held());
    DSEC_TRY(write(std::move(all), deadline).within("lease what is needed of " + origin_.description()));
  }
  // The lease first and the look at the marks second: a removal that has not seen
  // the one has left the other (collection.h).
  for (const std::string& hex : added) DSEC_TRY(wait_until_unmarked(hex, deadline));
  return out;
}

Result<bool> LeaseHolder::renew(const std::set<std::string>& hexes, Deadline deadline) {
  const std::lock_guard writing(writing_);
  DSEC_TRY(find_earlier(deadline));
  const bool lapsed = written_.expires_ms != 0 && written_.expires_ms <= now_ms();
  std::set<std::string> all = hexes;
  all.merge(held());
  DSEC_TRY(write(std::move(all), deadline).within("renew the lease in " + origin_.description()));
  return lapsed;
}

// The new one is there before the old one goes, and its name is known before it is there.
Result<void> LeaseHolder::write(std::set<std::string> hexes, Deadline deadline) {
  Lease fresh{options_.node, now_ms(), now_ms() + options_.valid.count(), std::move(hexes)};
  const Content content = Content::of_bytes(to_text(fresh));
  const ObjectName name{ObjectKind::kLease, content.hex()};
  if (std::find(objects_.begin(), objects_.end(), name) == objects_.end()) objects_.push_back(name);
  DSEC_TRY(remember(objects_));
  DSEC_TRY(origin_.publish(name, content, deadline));
  written_ = std::move(fresh);
  DSEC_TRY(fail_point("origin.lease.written"));
  for (const ObjectName& old : objects_)
    if (old != name) DSEC_TRY(origin_.remove(old, deadline));
  objects_ = {name};
  return remember(objects_);
}

Result<void> LeaseHolder::remember(const std::vector<ObjectName>& leases) const {
  std::string text;
  for (const ObjectName& name : leases) text += name.hex + "\n";
  return sys::replace_file(options_.state_file, text, 0600);
}

// Of a life before this one: what it named stays named until renew() says what is needed now.
Result<void> LeaseHolder::find_earlier(Deadline deadline) {
  if (looked_) return {};
  const Result<std::string> names = sys::read_file(options_.state_file, kMaxStateBytes);
  if (!names.ok() && names.error().code() != ErrorCode::kNotFound) return names.error();
  objects_.clear();
  std::istringstream lines(names.ok() ? *names : "");
  for (std::string hex; std::getline(lines, hex);) {
    if (!model::is_digest("sha256:" + hex)) return Error(ErrorCode::kDataFault, options_.state_file + " is damaged; remove it");
    const ObjectName name{ObjectKind::kLease, hex};
    objects_.push_back(name);
    const Result<std::string> text = read_whole(origin_, name, kMaxLeaseBytes, deadline);
    if (!text.ok() && text.error().code() == ErrorCode::kNotFound) continue;
    if (!text.ok()) return text.error();
    DSEC_ASSIGN(const Lease lease, parse_lease(*text));
    written_.hexes.insert(lease.hexes.begin(), lease.hexes.end());
    written_.expires_ms = std::max(written_.expires_ms, lease.expires_ms);
  }
  looked_ = true;
  return {};
}

Result<void> LeaseHolder::wait_until_unmarked(const std::string& hex, Deadline deadline) {
  for (;;) {
    const Result<std::unique_ptr<Object>> mark = origin_.open({ObjectKind::kDeleting, hex}, deadline);
    if (!mark.ok() && mark.error().code() == ErrorCode::kNotFound) return {};
    if (!mark.ok()) return mark.error();
    if (deadline.left() <= options_.look_again)
      return Error(ErrorCode::kUnavailable, hex + " is being removed from the store; where no garbage collection runs, `dsec layer gc --store` ends what one has begun");
    std::this_thread::sleep_for(options_.look_again);
  }
}

}  // namespace dsec::origin
