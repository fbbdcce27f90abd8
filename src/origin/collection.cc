#include "origin/collection.h"

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <map>
#include <set>
#include <thread>

#include "base/encoding.h"
#include "base/fail_point.h"
#include "base/random.h"
#include "model/json.h"
#include "model/strict_object.h"
#include "origin/lease.h"
#include "origin/manifest.h"
#include "origin/walk.h"

namespace dsec::origin {

namespace json = boost::json;

namespace {

constexpr std::size_t kMaxMarkBytes = 4096;

// A manifest goes before what it names, so that no manifest ever lacks a part.
constexpr ObjectKind kRemovalOrder[] = {ObjectKind::kManifest, ObjectKind::kMetadata, ObjectKind::kIndex, ObjectKind::kTrace, ObjectKind::kData};

// The mark of the run itself; of no object's name.
ObjectName run_mark() { return {ObjectKind::kDeleting, Content::of_bytes("dsec garbage collection").hex()}; }

bool is_mark(ObjectKind kind) { return kind == ObjectKind::kCondemned || kind == ObjectKind::kDeleting; }

// Different from every other one, so that two runs cannot both have made it.
std::string mark_text(std::int64_t now_ms, const std::string& node) {
  SystemRandom random;
  return json::serialize(json::object{{"at_ms", now_ms}, {"node", node}, {"run", to_hex(random.bytes(16))}});
}

struct Mark {
  std::int64_t at_ms = 0;
  std::string node;
};

Result<Mark> read_mark(Origin& origin, const ObjectName& name, Deadline deadline) {
  DSEC_ASSIGN(const std::string text, read_whole(origin, name, kMaxMarkBytes, deadline));
  DSEC_ASSIGN(const json::value value, model::parse_json(text));
  Mark out;
  model::StrictObject fields(value, "the mark " + name.path());
  fields.read("at_ms", out.at_ms);
  fields.read("node", out.node);
  fields.ignore("run");
  DSEC_TRY(fields.finish());
  return out;
}

struct Listing {
  std::map<std::string, std::set<ObjectKind>> objects;  // by hex; leases apart
  std::vector<ObjectName> leases;
};

class Collector {
 public:
  Collector(Origin& origin, const Clock& clock, const CollectionOptions& options) : origin_(origin), clock_(clock), options_(options) {}
  Result<Collection> run();

 private:
  Deadline deadline() const { return Deadline::in(options_.call_deadline); }
  std::int64_t now_ms() const { return std::chrono::duration_cast<std::chrono::milliseconds>(clock_.wall_now().time_since_epoch()).count(); }
  Result<void> check_cancelled() const;

  Result<void> begin();
  Result<void> look();
  Result<Listing> list();
  // Of all valid leases. Removes those that have expired.
  Result<std::set<std::string>> live(const std::vector<ObjectName>& leases);
  Result<void> add_parts(const std::set<std::string>& leased, std::set<std::string>& live);
  Result<void> mark(ObjectKind kind, const std::string& hex);
  Result<void> unmark(const std::string& hex);
  Result<void> judge(const Listing& listing, const std::set<std::string>& live);
  Result<void> judge_one(const std::string& hex, const std::set<ObjectKind>& kinds);
  Result<void> find_leftovers();
  Result<void> remove_leftovers(const std::set<std::string>& live);
  Result<void> remove_due();
  Result<void> remove_all(CollectedObject& object);
  Result<std::uint64_t> bytes_of(const CollectedObject& object);

  Origin& origin_;
  const Clock& clock_;
  const CollectionOptions& options_;
  std::vector<Leftover> leftovers_;
  Collection out_;
};

Result<void> Collector::check_cancelled() const {
  if (options_.cancelled != nullptr && options_.cancelled->load()) return Error(ErrorCode::kCancelled, "garbage collection was cancelled");
  return {};
}

Result<Listing> Collector::list() {
  Listing out;
  DSEC_TRY(each_object(origin_, Deadline::in(std::chrono::hours(1)), [&](const ObjectName& name) -> Result<void> {
    if (name == run_mark()) return {};
    if (name.kind == ObjectKind::kLease)
      out.leases.push_back(name);
    else
      out.objects[name.hex].insert(name.kind);
    return check_cancelled();
  }));
  return out;
}

Result<std::set<std::string>> Collector::live(const std::vector<ObjectName>& leases) {
  std::set<std::string> leased;
  std::set<std::string> nodes;
  for (const ObjectName& name : leases) {
    const Result<std::string> text = read_whole(origin_, name, kMaxLeaseBytes, deadline());
    if (!text.ok() && text.error().code() == ErrorCode::kNotFound) continue;  // its node has written a newer one
    if (!text.ok()) return text.error();
    DSEC_ASSIGN(const Lease lease, parse_lease(*text));
    if (lease.expires_ms + options_.grace.count() > now_ms()) {
      leased.insert(lease.hexes.begin(), lease.hexes.end());
      nodes.insert(lease.node);
    } else if (!options_.dry_run) {
      DSEC_TRY(origin_.remove(name, deadline()));
      out_.expired_leases++;
    }
  }
  out_.nodes.assign(nodes.begin(), nodes.end());
  std::set<std::string> live = leased;
  DSEC_TRY(add_parts(leased, live));
  return live;
}

Result<void> Collector::add_parts(const std::set<std::string>& leased, std::set<std::string>& live) {
  for (const std::string& hex : leased) {
    DSEC_TRY(check_cancelled());
    const Result<std::string> sealed = read_whole(origin_, {ObjectKind::kManifest, hex}, kMaxManifestBytes, deadline());
    if (!sealed.ok() && sealed.error().code() == ErrorCode::kNotFound) continue;  // data, or a layer on its way
    if (!sealed.ok()) return sealed.error();
    // Whoever signed it: what it names stays.
    const std::size_t line = sealed->find('\n');
    DSEC_ASSIGN(const Manifest manifest, parse_manifest(std::string_view(*sealed).substr(line == std::string::npos ? 0 : line + 1), hex));
    for (const ManifestData& data : manifest.data) {
      live.insert(data.hex);
      live.insert(data.index_hex);
    }
  }
  return {};
}

Result<void> Collector::mark(ObjectKind kind, const std::string& hex) {
  const Result<void> done = origin_.publish({kind, hex}, Content::of_bytes(mark_text(now_ms(), options_.node)), deadline());
  if (!done.ok() && done.error().code() == ErrorCode::kConflict) return {};  // of an earlier run
  return done;
}

// The wait of whoever needs it ends last.
Result<void> Collector::unmark(const std::string& hex) {
  DSEC_TRY(origin_.remove({ObjectKind::kCondemned, hex}, deadline()));
  DSEC_TRY(fail_point("origin.collect.unmark"));
  return origin_.remove({ObjectKind::kDeleting, hex}, deadline());
}

Result<void> Collector::judge(const Listing& listing, const std::set<std::string>& live) {
  for (const auto& [hex, kinds] : listing.objects) {
    DSEC_TRY(check_cancelled());
    const bool marked = std::any_of(kinds.begin(), kinds.end(), is_mark);
    const bool anything = std::any_of(kinds.begin(), kinds.end(), [](ObjectKind kind) { return !is_mark(kind); });
    if (!anything || live.contains(hex)) {
      if (anything) out_.live++;
      if (marked && !options_.dry_run) DSEC_TRY(unmark(hex));
    } else {
      DSEC_TRY(judge_one(hex, kinds));
    }
  }
  return {};
}

Result<void> Collector::judge_one(const std::string& hex, const std::set<ObjectKind>& kinds) {
  CollectedObject object{.hex = hex};
  std::copy_if(kinds.begin(), kinds.end(), std::back_inserter(object.kinds), [](ObjectKind kind) { return !is_mark(kind); });
  object.condemned_ms = now_ms();
  if (kinds.contains(ObjectKind::kCondemned)) {
    DSEC_ASSIGN(const Mark since, read_mark(origin_, {ObjectKind::kCondemned, hex}, deadline()));
    object.condemned_ms = std::min(since.at_ms, now_ms());
    const bool due = object.condemned_ms + options_.delete_after.count() <= now_ms();
    if (due) object.fate = CollectedObject::Fate::kDue;
    // Of a run that was cut off and had less patience: nobody waits for what does not come.
    if (!due && kinds.contains(ObjectKind::kDeleting) && !options_.dry_run) DSEC_TRY(origin_.remove({ObjectKind::kDeleting, hex}, deadline()));
  } else if (!options_.dry_run) {
    DSEC_TRY(mark(ObjectKind::kCondemned, hex));
    DSEC_TRY(fail_point("origin.collect.condemned"));
  }
  out_.objects.push_back(std::move(object));
  return {};
}

Result<std::uint64_t> Collector::bytes_of(const CollectedObject& object) {
  std::uint64_t bytes = 0;
  for (const ObjectKind kind : object.kinds) {
    const Result<std::unique_ptr<Object>> there = origin_.open({kind, object.hex}, deadline());
    if (there.ok())
      bytes += (*there)->size();
    else if (there.error().code() != ErrorCode::kNotFound)
      return there.error();
  }
  return bytes;
}

Result<void> Collector::remove_all(CollectedObject& object) {
  for (const ObjectKind kind : kRemovalOrder) {
    DSEC_TRY(origin_.remove({kind, object.hex}, deadline()));
    DSEC_TRY(fail_point("origin.collect.removed"));
  }
  object.fate = CollectedObject::Fate::kRemoved;
  out_.freed_bytes += object.bytes;
  return unmark(object.hex);
}

Result<void> Collector::remove_due() {
  std::vector<CollectedObject*> due;
  for (CollectedObject& object : out_.objects)
    if (object.fate == CollectedObject::Fate::kDue) due.push_back(&object);
  // What a manifest names stays for as long as the manifest does.
  std::partition(due.begin(), due.end(), [](const CollectedObject* object) {
    return std::find(object->kinds.begin(), object->kinds.end(), ObjectKind::kManifest) != object->kinds.end();
  });
  for (CollectedObject* object : due) {
    DSEC_ASSIGN(object->bytes, bytes_of(*object));
    if (options_.dry_run) out_.freed_bytes += object->bytes;
  }
  if (due.empty() || options_.dry_run) return {};
  for (const CollectedObject* object : due) DSEC_TRY(mark(ObjectKind::kDeleting, object->hex));
  DSEC_TRY(fail_point("origin.collect.marked"));
  std::this_thread::sleep_for(options_.settle);
  DSEC_ASSIGN(const Listing again, list());
  DSEC_ASSIGN(const std::set<std::string> live_now, live(again.leases));
  for (CollectedObject* object : due) {
    DSEC_TRY(check_cancelled());
    if (live_now.contains(object->hex)) {
      object->fate = CollectedObject::Fate::kCondemned;
      DSEC_TRY(unmark(object->hex));
    } else {
      DSEC_TRY(remove_all(*object));
    }
  }
  return {};
}

Result<void> Collector::find_leftovers() {
  Result<std::vector<Leftover>> found = origin_.leftovers(deadline());
  // To list uploads is a right of its own in many buckets.
  if (!found.ok() && (found.error().code() == ErrorCode::kUnsupported || found.error().code() == ErrorCode::kPermissionDenied)) return {};
  if (!found.ok()) return found.error();
  leftovers_ = std::move(found).value();
  out_.leftovers.emplace().found = leftovers_.size();
  return {};
}

Result<void> Collector::remove_leftovers(const std::set<std::string>& live) {
  for (const Leftover& leftover : leftovers_) {
    DSEC_TRY(check_cancelled());
    const bool leased = leftover.of && live.contains(leftover.of->hex);
    if (leftover.age < std::max(options_.delete_after, leased ? options_.leased_leftovers_after : options_.leftovers_after)) continue;
    if (!options_.dry_run) DSEC_TRY(origin_.remove_leftover(leftover, deadline()));
    out_.leftovers->removed++;
    out_.leftovers->bytes += leftover.bytes;
    out_.freed_bytes += leftover.bytes;
  }
  return {};
}

Result<void> Collector::begin() {
  for (int attempt = 0; attempt < 2; attempt++) {
    const Result<void> made = origin_.publish(run_mark(), Content::of_bytes(mark_text(now_ms(), options_.node)), deadline());
    if (made.ok() || made.error().code() != ErrorCode::kConflict) return made;
    DSEC_ASSIGN(const Mark other, read_mark(origin_, run_mark(), deadline()));
    const bool ours = !options_.node.empty() && other.node == options_.node;
    if (!ours && other.at_ms + options_.run_limit.count() > now_ms()) break;
    DSEC_TRY(origin_.remove(run_mark(), deadline()));
  }
  return Error(ErrorCode::kConflict, "the garbage of this store is being collected, or a run was cut off; it is taken for dead " +
                                         std::to_string(options_.run_limit / std::chrono::minutes(1)) + " minutes after its start");
}

Result<void> Collector::look() {
  DSEC_TRY(find_leftovers());
  DSEC_ASSIGN(const Listing listing, list());
  DSEC_ASSIGN(const std::set<std::string> live_now, live(listing.leases));
  DSEC_TRY(judge(listing, live_now));
  DSEC_TRY(remove_leftovers(live_now));
  return remove_due();
}

Result<Collection> Collector::run() {
  if (!options_.dry_run) DSEC_TRY(begin());
  const Result<void> done = look();
  if (!options_.dry_run) DSEC_TRY(origin_.remove(run_mark(), deadline()));
  if (!done.ok()) return done.error();
  return std::move(out_);
}

}  // namespace

Result<Collection> collect(Origin& origin, const Clock& clock, const CollectionOptions& options) {
  return Collector(origin, clock, options).run().within("collect the garbage of " + origin.description());
}

Result<bool> was_cut_off(Origin& origin, const std::string& node, Deadline deadline) {
  const Result<Mark> mark = read_mark(origin, run_mark(), deadline);
  if (!mark.ok() && mark.error().code() == ErrorCode::kNotFound) return false;
  if (!mark.ok()) return mark.error();
  return mark->node == node;
}

}  // namespace dsec::origin
