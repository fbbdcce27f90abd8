// Store: what the control plane must remember: projects, keys, refs, pins, services,
// operations, and the history of sandboxes.
//
// Every call may block for a commit; the apiserver makes them on a worker
// thread. After an error nothing of the call is stored. The edge's own log, not
// this store, is the truth about live sandboxes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/layer.h"
#include "model/principal.h"
#include "model/sandbox.h"
#include "model/service.h"

namespace dsec::store {

struct Project {
  std::string name;
  std::string parent;  // "" for one of the top
  std::int64_t created_at_ms = 0;
};

struct ApiKey {
  std::string id;         // public: "key_" + 16 base32 characters
  std::string project;
  std::string name;       // for people
  model::Role role = model::Role::kRuntime;
  std::string hash;       // SHA-256 of the key, hex; the key itself is stored nowhere
  std::int64_t created_at_ms = 0;
  std::int64_t revoked_at_ms = 0;  // 0 = valid
};

enum class RefKind { kImage, kWorkspace, kToolkit, kDiff, kVerifier };
std::string_view to_string(RefKind kind);
// Of the refs that name layers of this kind.
RefKind ref_kind(model::LayerKind kind);

// A name:tag that points at layers, lowest first. An image is one base.
struct Ref {
  std::string project;
  RefKind kind = RefKind::kImage;
  std::string name;
  std::string tag;
  std::vector<std::string> layers;
  std::int64_t created_at_ms = 0;
  bool quarantined = false;  // packed from a sandbox, and nobody has promoted it
};

// A call that outlasts its request. `record` is its JSON form, "result" or "error"
// included once it is over.
struct OperationRecord {
  std::string id;
  std::string project;
  std::int64_t created_at_ms = 0;
  bool running = true;
  std::string record;
};

// A layer that nothing held when it was last looked at (image/garbage.h).
struct UnusedLayer {
  std::string digest;
  std::int64_t since_ms = 0;
  std::int64_t condemned_ms = 0;  // 0: not yet
  bool operator==(const UnusedLayer&) const = default;
};

// Keeps a layer that nothing uses.
struct Pin {
  std::string project;
  std::string digest;
  std::string owner;   // id of the key that set it
  std::string reason;  // for people
  std::int64_t created_at_ms = 0;
  std::int64_t expires_at_ms = 0;  // 0: never
  bool operator==(const Pin&) const = default;
};

// A sandbox's files at one moment: a layer over those that it was made of. Holds
// all of them for as long as it is there.
struct Checkpoint {
  std::string id;       // "ckpt_" + 16 base32 characters
  std::string project;
  std::string sandbox;  // whose files they were
  std::string parent;   // the checkpoint that these files came from; "" = none
  std::string name;     // of a snapshot; "" = a checkpoint without
  std::vector<std::string> layers;  // lowest first, the checkpoint's own last
  model::Resources resources;       // of the sandbox
  std::uint64_t bytes = 0;          // of the files in its own layer
  std::string key;                  // idempotency key of the call that made it; "" = none
  std::int64_t created_at_ms = 0;
  std::int64_t expires_at_ms = 0;   // 0: never
};

// Where a sandbox stands among those of its project: by creation, then by id.
struct HistoryPlace {
  std::int64_t created_at_ms = 0;
  std::string id;
  auto operator<=>(const HistoryPlace&) const = default;
};

class Store {
 public:
  virtual ~Store() = default;
  virtual Result<void> put_project(const Project& project) = 0;
  virtual Result<std::vector<Project>> projects() = 0;
  virtual Result<void> put_key(const ApiKey& key) = 0;  // new, or changed (revoked)
  virtual Result<std::vector<ApiKey>> keys() = 0;       // of every project
  virtual Result<void> put_ref(const Ref& ref) = 0;     // replaces project/kind/name/tag
  virtual Result<std::vector<Ref>> refs() = 0;
  // false when there was none.
  virtual Result<bool> remove_ref(const std::string& project, RefKind kind, const std::string& name, const std::string& tag) = 0;
  virtual Result<void> put_service(const model::ServiceDefinition& service) = 0;
  virtual Result<std::vector<model::ServiceDefinition>> services() = 0;
  virtual Result<bool> remove_service(const std::string& name) = 0;
  // These and no others, in one transaction.
  virtual Result<void> replace_unused_layers(const std::vector<UnusedLayer>& layers) = 0;
  virtual Result<std::vector<UnusedLayer>> unused_layers() = 0;
  virtual Result<void> put_pin(const Pin& pin) = 0;  // replaces project/digest
  virtual Result<std::vector<Pin>> pins() = 0;
  // false when there was none.
  virtual Result<bool> remove_pin(const std::string& project, const std::string& digest) = 0;
  virtual Result<void> put_checkpoint(const Checkpoint& checkpoint) = 0;
  virtual Result<std::vector<Checkpoint>> checkpoints() = 0;  // of every project, oldest first
  virtual Result<void> remove_checkpoints(const std::vector<std::string>& ids) = 0;  // unknown ones are no error
  virtual Result<void> put_operation(const OperationRecord& operation) = 0;  // new, or changed
  // Oldest first: those that run, and the last 1,000 that are over.
  virtual Result<std::vector<OperationRecord>> operations() = 0;
  // Ended sandboxes, one transaction; known ids are replaced.
  virtual Result<void> append_history(const std::vector<model::Sandbox>& ended) = 0;
  // Of one project in the order of their creation, behind `after`; at most `limit`.
  virtual Result<std::vector<model::Sandbox>> history(const std::string& project, const HistoryPlace& after, std::size_t limit) = 0;
  // One of the history, by its id.
  virtual Result<std::optional<model::Sandbox>> past(const std::string& project, const std::string& id) = 0;
  // By its id, else the one whose id begins so (four characters at least; kConflict for
  // more than one), else the one of this name that ended last.
  virtual Result<std::optional<model::Sandbox>> find_past(const std::string& project, const std::string& ref) = 0;
  // As if these had never been; unknown ids are no error.
  virtual Result<void> erase_history(const std::vector<std::string>& ids) = 0;
  // Removes what ended before `before_ms`, and the oldest beyond `most`, of every project together.
  virtual Result<void> trim_history(std::int64_t before_ms, std::size_t most) = 0;
};

}  // namespace dsec::store
