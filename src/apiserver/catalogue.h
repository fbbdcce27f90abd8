// The apiserver's view of the Store: read once, kept in memory, written through.
//
// Called on the event loop only. Reads never block; a change is committed on the
// worker pool and seen by reads once it is stored.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "model/principal.h"
#include "store/store.h"
#include "sys/worker_pool.h"

namespace dsec::apiserver {

namespace asio = boost::asio;

// Where refs live that every project may use, and that the first key belongs to.
inline constexpr const char* kDefaultProject = "default";

class Catalogue {
 public:
  struct NewKey {
    store::ApiKey record;
    std::string key;  // told once
  };

  // All arguments outlive the catalogue. Blocks.
  static Result<std::unique_ptr<Catalogue>> open(store::Store& store, sys::WorkerPool& pool, const Clock& clock, Random& random);
  // The admin key of `path`: made on the first start, and registered again when the
  // store has lost it. Blocks; before the loop runs.
  Result<std::string> ensure_admin_key(const std::string& path);

  // kUnauthenticated for everything that is no valid key.
  Result<model::Principal> authenticate(std::string_view key) const;
  std::vector<store::ApiKey> keys(const std::string& project) const;
  asio::awaitable<Result<NewKey>> create_key(std::string project, std::string name, model::Role role);
  asio::awaitable<Result<void>> revoke_key(std::string project, std::string id);

  std::vector<store::Project> projects() const;
  bool has_project(const std::string& name) const { return projects_.contains(name); }
  asio::awaitable<Result<void>> create_project(store::Project project);

  // What somebody may name: refs of his project and of the default one. Those in
  // quarantine and those of verifiers are for builders of their project alone.
  std::vector<store::Ref> refs(const model::Principal& who) const;
  // His project's own ref, else the default project's.
  Result<store::Ref> find_ref(const model::Principal& who, store::RefKind kind, const std::string& text) const;
  // A digest is a name, not a right: he reads the layers that a ref names which he may name.
  bool may_read(const model::Principal& who, const std::string& digest) const;
  bool is_referenced(const std::string& digest) const;
  // Of every project.
  std::vector<store::Ref> all_refs() const;
  asio::awaitable<Result<void>> put_ref(store::Ref ref);
  // kNotFound when the project has none of its own.
  asio::awaitable<Result<store::Ref>> remove_ref(std::string project, store::RefKind kind, std::string text);

  // Of every project; those that have expired too.
  std::vector<store::Pin> pins() const;
  asio::awaitable<Result<void>> put_pin(store::Pin pin);
  // kNotFound when the project has none.
  asio::awaitable<Result<void>> remove_pin(std::string project, std::string digest);
  // Those of a project that are there and have not expired, oldest first.
  std::vector<store::Checkpoint> checkpoints(const std::string& project) const;
  // By id, or by name where a snapshot has it. kNotFound also for one that has expired.
  Result<store::Checkpoint> find_checkpoint(const std::string& project, const std::string& ref) const;
  std::vector<store::Checkpoint> all_checkpoints() const;
  // kConflict for a name that another one has.
  asio::awaitable<Result<void>> put_checkpoint(store::Checkpoint checkpoint);
  asio::awaitable<Result<void>> remove_checkpoints(std::vector<std::string> ids);
  std::string new_checkpoint_id();
  // What garbage collection found at its last look.
  const std::vector<store::UnusedLayer>& unused_layers() const { return unused_layers_; }
  asio::awaitable<Result<void>> replace_unused_layers(std::vector<store::UnusedLayer> layers);

  std::vector<model::ServiceDefinition> services() const;
  asio::awaitable<Result<void>> put_service(model::ServiceDefinition service);
  asio::awaitable<Result<void>> remove_service(std::string name);

  // As the last life of the server left them.
  const std::vector<store::OperationRecord>& earlier_operations() const { return earlier_operations_; }
  asio::awaitable<Result<void>> put_operation(store::OperationRecord operation);
  std::int64_t now_ms() const;

 private:
  Catalogue(store::Store& store, sys::WorkerPool& pool, const Clock& clock, Random& random)
      : store_(store), pool_(pool), clock_(clock), random_(random) {}
  Result<void> load();
  NewKey make_key(std::string project, std::string name, model::Role role);

  using RefKey = std::tuple<std::string, store::RefKind, std::string, std::string>;
  store::Store& store_;
  sys::WorkerPool& pool_;
  const Clock& clock_;
  Random& random_;
  std::map<std::string, store::ApiKey> keys_by_hash_;
  std::map<std::string, store::Project> projects_;
  std::map<RefKey, store::Ref> refs_;
  std::map<std::pair<std::string, std::string>, store::Pin> pins_;  // by project and digest
  std::vector<store::UnusedLayer> unused_layers_;
  std::map<std::string, store::Checkpoint> checkpoints_;  // by id
  std::map<std::string, model::ServiceDefinition> services_;
  std::vector<store::OperationRecord> earlier_operations_;
};

}  // namespace dsec::apiserver
