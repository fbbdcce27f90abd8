#include "apiserver/catalogue.h"

#include <algorithm>
#include <tuple>

#include "base/encoding.h"
#include "model/sha256.h"
#include "net/blocking.h"
#include "sys/file.h"

namespace dsec::apiserver {
namespace {

constexpr std::string_view kKeyPrefix = "e2b_";  // the form that every client accepts
constexpr std::size_t kKeyLength = 44;           // prefix and 40 hex digits

std::string hash_of(std::string_view key) { return to_hex(model::sha256(key)); }

bool is_name(std::string_view text) {
  const auto fits = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_'; };
  return !text.empty() && text.size() <= 63 && text[0] != '-' && text[0] != '_' && std::all_of(text.begin(), text.end(), fits);
}

bool may_name(const model::Principal& who, const store::Ref& ref) {
  const bool own = ref.project == who.project;
  if (ref.quarantined || ref.kind == store::RefKind::kVerifier) return own && who.builds();
  return own || ref.project == kDefaultProject;
}

}  // namespace

Result<std::unique_ptr<Catalogue>> Catalogue::open(store::Store& store, sys::WorkerPool& pool, const Clock& clock, Random& random) {
  auto catalogue = std::unique_ptr<Catalogue>(new Catalogue(store, pool, clock, random));
  DSEC_TRY(catalogue->load().within("read the store"));
  return catalogue;
}

Result<void> Catalogue::load() {
  DSEC_ASSIGN(std::vector<store::Project> projects, store_.projects());
  for (store::Project& project : projects) projects_[project.name] = std::move(project);
  if (!projects_.contains(kDefaultProject)) {
    const store::Project first{kDefaultProject, "", now_ms()};
    DSEC_TRY(store_.put_project(first));
    projects_[kDefaultProject] = first;
  }
  DSEC_ASSIGN(std::vector<store::ApiKey> keys, store_.keys());
  for (store::ApiKey& key : keys) keys_by_hash_[key.hash] = std::move(key);
  DSEC_ASSIGN(std::vector<store::Ref> refs, store_.refs());
  for (store::Ref& ref : refs) refs_[{ref.project, ref.kind, ref.name, ref.tag}] = std::move(ref);
  DSEC_ASSIGN(std::vector<model::ServiceDefinition> services, store_.services());
  for (model::ServiceDefinition& service : services) services_[service.name] = std::move(service);
  DSEC_ASSIGN(std::vector<store::Pin> pins, store_.pins());
  for (store::Pin& pin : pins) pins_[{pin.project, pin.digest}] = std::move(pin);
  DSEC_ASSIGN(unused_layers_, store_.unused_layers());
  DSEC_ASSIGN(std::vector<store::Checkpoint> checkpoints, store_.checkpoints());
  for (store::Checkpoint& checkpoint : checkpoints) checkpoints_[checkpoint.id] = std::move(checkpoint);
  DSEC_ASSIGN(earlier_operations_, store_.operations());
  for (store::OperationRecord& operation : earlier_operations_) {
    if (!operation.running) continue;
    operation.running = false;  // over, and without an outcome
    DSEC_TRY(store_.put_operation(operation));
  }
  return {};
}

std::int64_t Catalogue::now_ms() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(clock_.wall_now().time_since_epoch()).count();
}

Catalogue::NewKey Catalogue::make_key(std::string project, std::string name, model::Role role) {
  NewKey made;
  made.key = std::string(kKeyPrefix) + to_hex(random_.bytes(20));
  made.record = {"key_" + to_base32(random_.bytes(10)), std::move(project), std::move(name), role, hash_of(made.key), now_ms(), 0};
  return made;
}

Result<std::string> Catalogue::ensure_admin_key(const std::string& path) {
  Result<std::string> text = sys::read_file(path, 4096);
  if (text.ok()) {
    std::string key = *text;
    while (!key.empty() && (key.back() == '\n' || key.back() == ' ')) key.pop_back();
    if (key.size() != kKeyLength || !key.starts_with(kKeyPrefix)) return Error(ErrorCode::kDataFault, path + " holds no key; remove it to get a new one");
    if (const auto known = keys_by_hash_.find(hash_of(key)); known != keys_by_hash_.end()) {
      if (known->second.revoked_at_ms != 0) return Error(ErrorCode::kConflict, "the key of " + path + " was revoked; remove the file to get a new one");
      return key;
    }
    NewKey again = make_key(kDefaultProject, "admin", model::Role::kAdmin);
    again.record.hash = hash_of(key);
    DSEC_TRY(store_.put_key(again.record));
    keys_by_hash_[again.record.hash] = again.record;
    return key;
  }
  if (text.error().code() != ErrorCode::kNotFound) return std::move(text).error();
  const NewKey made = make_key(kDefaultProject, "admin", model::Role::kAdmin);
  // The key is stored before it is told: a file that names no key would lock the operator out.
  DSEC_TRY(store_.put_key(made.record));
  DSEC_TRY(sys::replace_file(path, made.key + "\n", 0600));
  keys_by_hash_[made.record.hash] = made.record;
  return made.key;
}

Result<model::Principal> Catalogue::authenticate(std::string_view key) const {
  const Error refused(ErrorCode::kUnauthenticated, "no valid key; send one as Authorization: Bearer or X-API-Key");
  if (key.size() != kKeyLength || !key.starts_with(kKeyPrefix)) return refused;
  // By hash: what time the look-up takes tells nothing of the key.
  const auto found = keys_by_hash_.find(hash_of(key));
  if (found == keys_by_hash_.end() || found->second.revoked_at_ms != 0) return refused;
  return model::Principal{found->second.project, found->second.id, found->second.role};
}

std::vector<store::ApiKey> Catalogue::keys(const std::string& project) const {
  std::vector<store::ApiKey> out;
  for (const auto& [hash, key] : keys_by_hash_)
    if (key.project == project) out.push_back(key);
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return std::tie(a.created_at_ms, a.id) < std::tie(b.created_at_ms, b.id); });
  return out;
}

asio::awaitable<Result<Catalogue::NewKey>> Catalogue::create_key(std::string project, std::string name, model::Role role) {
  if (!has_project(project)) co_return Error(ErrorCode::kNotFound, "no project " + project);
  if (name.size() > 100) co_return invalid_argument("name: longer than 100 bytes");
  NewKey made = make_key(std::move(project), std::move(name), role);
  DSEC_CO_TRY(co_await net::on_pool(pool_, [this, record = made.record] { return store_.put_key(record); }));
  keys_by_hash_[made.record.hash] = made.record;
  co_return made;
}

asio::awaitable<Result<void>> Catalogue::revoke_key(std::string project, std::string id) {
  const auto found = std::find_if(keys_by_hash_.begin(), keys_by_hash_.end(),
                                  [&](const auto& entry) { return entry.second.id == id && entry.second.project == project; });
  if (found == keys_by_hash_.end()) co_return Error(ErrorCode::kNotFound, "no key " + id);
  store::ApiKey revoked = found->second;
  if (revoked.revoked_at_ms != 0) co_return Result<void>();
  revoked.revoked_at_ms = now_ms();
  DSEC_CO_TRY(co_await net::on_pool(pool_, [this, revoked] { return store_.put_key(revoked); }));
  keys_by_hash_[revoked.hash] = revoked;
  co_return Result<void>();
}

std::vector<store::Project> Catalogue::projects() const {
  std::vector<store::Project> out;
  for (const auto& [name, project] : projects_) out.push_back(project);
  return out;
}

asio::awaitable<Result<void>> Catalogue::create_project(store::Project project) {
  if (!is_name(project.name)) co_return invalid_argument("name: [a-z0-9][a-z0-9_-]{0,62}");
  if (has_project(project.name)) co_return Error(ErrorCode::kConflict, "project " + project.name + " exists");
  if (!project.parent.empty() && !has_project(project.parent)) co_return Error(ErrorCode::kNotFound, "no project " + project.parent);
  project.created_at_ms = now_ms();
  DSEC_CO_TRY(co_await net::on_pool(pool_, [this, project] { return store_.put_project(project); }));
  projects_[project.name] = project;
  co_return Result<void>();
}

Result<store::Ref> Catalogue::find_ref(const model::Principal& who, store::RefKind kind, const std::string& text) const {
  DSEC_ASSIGN(const model::RefName ref, model::parse_ref(text));
  for (const std::string& owner : {who.project, std::string(kDefaultProject)})
    if (const auto found = refs_.find({owner, kind, ref.name, ref.tag}); found != refs_.end() && may_name(who, found->second)) return found->second;
  return Error(ErrorCode::kNotFound, "no " + std::string(store::to_string(kind)) + " " + ref.text() + "; import it first");
}

std::vector<store::Ref> Catalogue::refs(const model::Principal& who) const {
  std::vector<store::Ref> out;
  for (const auto& [key, ref] : refs_)
    if (may_name(who, ref)) out.push_back(ref);
  return out;
}

bool Catalogue::may_read(const model::Principal& who, const std::string& digest) const {
  return std::any_of(refs_.begin(), refs_.end(), [&](const auto& entry) {
    return may_name(who, entry.second) && std::find(entry.second.layers.begin(), entry.second.layers.end(), digest) != entry.second.layers.end();
  });
}

bool Catalogue::is_referenced(const std::string& digest) const {
  return std::any_of(refs_.begin(), refs_.end(), [&](const auto& entry) {
    return std::find(entry.second.layers.begin(), entry.second.layers.end(), digest) != entry.second.layers.end();
  });
}

std::vector<store::Ref> Catalogue::all_refs() const {
  std::vector<store::Ref> out;
  for (const auto& [key, ref] : refs_) out.push_back(ref);
  return out;
}

asio::awaitable<Result<void>> Catalogue::put_ref(store::Ref ref) {
  ref.created_at_ms = now_ms();
  DSEC_CO_TRY(co_await net::on_pool(pool_, [this, ref] { return store_.put_ref(ref); }));
  const RefKey key{ref.project, ref.kind, ref.name, ref.tag};
  refs_[key] = std::move(ref);
  co_return Result<void>();
}

asio::awaitable<Result<store::Ref>> Catalogue::remove_ref(std::string project, store::RefKind kind, std::string text) {
  DSEC_CO_ASSIGN(const model::RefName name, model::parse_ref(text));
  const auto found = refs_.find({project, kind, name.name, name.tag});
  if (found == refs_.end()) co_return Error(ErrorCode::kNotFound, "no " + std::string(store::to_string(kind)) + " " + name.text());
  const store::Ref removed = found->second;
  DSEC_CO_TRY(co_await net::on_pool(pool_, [this, removed] { return store_.remove_ref(removed.project, removed.kind, removed.name, removed.tag); }));
  refs_.erase({project, kind, name.name, name.tag});
  co_return removed;
}

std::vector<store::Pin> Catalogue::pins() const {
  std::vector<store::Pin> out;
  for (const auto& [key, pin] : pins_) out.push_back(pin);
  return out;
}

namespace {
bool there(const store::Checkpoint& checkpoint, std::int64_t now_ms) { return checkpoint.expires_at_ms == 0 || checkpoint.expires_at_ms > now_ms; }
}  // namespace

std::vector<store::Checkpoint> Catalogue::all_checkpoints() const {
  std::vector<store::Checkpoint> out;
  for (const auto& [id, checkpoint] : checkpoints_) out.push_back(checkpoint);
  return out;
}

std::vector<store::Checkpoint> Catalogue::checkpoints(const std::string& project) const {
  std::vector<store::Checkpoint> out;
  for (const auto& [id, checkpoint] : checkpoints_)
    if (checkpoint.project == project && there(checkpoint, now_ms())) out.push_back(checkpoint);
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return std::tie(a.created_at_ms, a.id) < std::tie(b.created_at_ms, b.id); });
  return out;
}

Result<store::Checkpoint> Catalogue::find_checkpoint(const std::string& project, const std::string& ref) const {
  if (const auto found = checkpoints_.find(ref); found != checkpoints_.end() && found->second.project == project && there(found->second, now_ms()))
    return found->second;
  for (const auto& [id, checkpoint] : checkpoints_)
    if (!ref.empty() && checkpoint.project == project && checkpoint.name == ref && there(checkpoint, now_ms())) return checkpoint;
  return Error(ErrorCode::kNotFound, "there is no checkpoint or snapshot \"" + ref.substr(0, 64) + "\"");
}

std::string Catalogue::new_checkpoint_id() { return "ckpt_" + to_base32(random_.bytes(10)); }

asio::awaitable<Result<void>> Catalogue::put_checkpoint(store::Checkpoint checkpoint) {
  const auto taken = [&] { return !checkpoint.name.empty() && find_checkpoint(checkpoint.project, checkpoint.name).ok(); };
  if (taken()) co_return Error(ErrorCode::kConflict, "name: \"" + checkpoint.name + "\" is taken by another snapshot");
  // In memory first: nobody else gets the name meanwhile.
  const std::string id = checkpoint.id;
  checkpoints_[id] = checkpoint;
  Result<void> stored = co_await net::on_pool(pool_, [this, checkpoint] { return store_.put_checkpoint(checkpoint); });
  if (!stored.ok()) checkpoints_.erase(id);
  co_return stored;
}

asio::awaitable<Result<void>> Catalogue::remove_checkpoints(std::vector<std::string> ids) {
  DSEC_CO_TRY(co_await net::on_pool(pool_, [this, ids] { return store_.remove_checkpoints(ids); }));
  for (const std::string& id : ids) checkpoints_.erase(id);
  co_return Result<void>();
}

asio::awaitable<Result<void>> Catalogue::put_pin(store::Pin pin) {
  DSEC_CO_TRY(co_await net::on_pool(pool_, [this, pin] { return store_.put_pin(pin); }));
  const std::pair key(pin.project, pin.digest);
  pins_[key] = std::move(pin);
  co_return Result<void>();
}

asio::awaitable<Result<void>> Catalogue::remove_pin(std::string project, std::string digest) {
  if (!pins_.contains({project, digest})) co_return Error(ErrorCode::kNotFound, "no pin of " + digest);
  DSEC_CO_TRY(co_await net::on_pool(pool_, [this, project, digest] { return store_.remove_pin(project, digest); }));
  pins_.erase({project, digest});
  co_return Result<void>();
}

asio::awaitable<Result<void>> Catalogue::replace_unused_layers(std::vector<store::UnusedLayer> layers) {
  DSEC_CO_TRY(co_await net::on_pool(pool_, [this, layers] { return store_.replace_unused_layers(layers); }));
  unused_layers_ = std::move(layers);
  co_return Result<void>();
}

std::vector<model::ServiceDefinition> Catalogue::services() const {
  std::vector<model::ServiceDefinition> out;
  for (const auto& [name, service] : services_) out.push_back(service);
  return out;
}

asio::awaitable<Result<void>> Catalogue::put_service(model::ServiceDefinition service) {
  DSEC_CO_TRY(co_await net::on_pool(pool_, [this, service] { return store_.put_service(service); }));
  const std::string name = service.name;
  services_[name] = std::move(service);
  co_return Result<void>();
}

asio::awaitable<Result<void>> Catalogue::remove_service(std::string name) {
  if (!services_.contains(name)) co_return Error(ErrorCode::kNotFound, "no service " + name);
  DSEC_CO_TRY(co_await net::on_pool(pool_, [this, name] { return store_.remove_service(name); }));
  services_.erase(name);
  co_return Result<void>();
}

asio::awaitable<Result<void>> Catalogue::put_operation(store::OperationRecord operation) {
  co_return co_await net::on_pool(pool_, [this, operation] { return store_.put_operation(operation); });
}

}  // namespace dsec::apiserver
