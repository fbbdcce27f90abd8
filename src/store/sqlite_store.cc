#include "store/sqlite_store.h"

#include <sqlite3.h>

#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <mutex>

#include "model/json.h"

namespace dsec::store {

std::string_view to_string(RefKind kind) {
  switch (kind) {
    case RefKind::kImage:
      return "image";
    case RefKind::kWorkspace:
      return "workspace";
    case RefKind::kToolkit:
      return "toolkit";
    case RefKind::kDiff:
      return "diff";
    case RefKind::kVerifier:
      return "verifier";
  }
  return "image";
}

RefKind ref_kind(model::LayerKind kind) {
  switch (kind) {
    case model::LayerKind::kBase:
      return RefKind::kImage;
    case model::LayerKind::kWorkspace:
      return RefKind::kWorkspace;
    case model::LayerKind::kToolkit:
      return RefKind::kToolkit;
    case model::LayerKind::kDiff:
      return RefKind::kDiff;
    case model::LayerKind::kVerifier:
      return RefKind::kVerifier;
  }
  return RefKind::kImage;
}

namespace {

namespace json = boost::json;

// The format number of the file; grows with every change of the schema, each of
// which adds a step to kSteps and changes none.
constexpr const char* kSteps[] = {
    R"(CREATE TABLE projects(name TEXT PRIMARY KEY, parent TEXT NOT NULL, created_at_ms INTEGER NOT NULL);
       CREATE TABLE api_keys(id TEXT PRIMARY KEY, project TEXT NOT NULL, name TEXT NOT NULL, role INTEGER NOT NULL,
                             hash TEXT NOT NULL UNIQUE, created_at_ms INTEGER NOT NULL, revoked_at_ms INTEGER NOT NULL);
       CREATE TABLE refs(project TEXT NOT NULL, kind INTEGER NOT NULL, name TEXT NOT NULL, tag TEXT NOT NULL,
                         layers TEXT NOT NULL, created_at_ms INTEGER NOT NULL, PRIMARY KEY(project, kind, name, tag));
       CREATE TABLE services(name TEXT PRIMARY KEY, definition TEXT NOT NULL);
       CREATE TABLE sandbox_history(id TEXT PRIMARY KEY, project TEXT NOT NULL, ended_at_ms INTEGER NOT NULL, record TEXT NOT NULL);
       CREATE INDEX sandbox_history_by_end ON sandbox_history(project, ended_at_ms);)",
    R"(CREATE TABLE operations(id TEXT PRIMARY KEY, project TEXT NOT NULL, created_at_ms INTEGER NOT NULL, running INTEGER NOT NULL,
                               record TEXT NOT NULL);)",
    R"(ALTER TABLE sandbox_history ADD COLUMN created_at_ms INTEGER NOT NULL DEFAULT 0;
       ALTER TABLE sandbox_history ADD COLUMN name TEXT NOT NULL DEFAULT '';
       UPDATE sandbox_history SET name=ifnull(record->>'$.name',''),
         created_at_ms=ifnull(unixepoch(record->>'$.created_at')*1000+CAST(substr(record->>'$.created_at',21,3) AS INTEGER),0);
       CREATE INDEX sandbox_history_by_creation ON sandbox_history(project, created_at_ms, id);
       CREATE INDEX sandbox_history_by_name ON sandbox_history(project, name, ended_at_ms);)",
    R"(CREATE TABLE unused_layers(digest TEXT PRIMARY KEY, since_ms INTEGER NOT NULL, condemned_ms INTEGER NOT NULL);
       CREATE TABLE pins(project TEXT NOT NULL, digest TEXT NOT NULL, owner TEXT NOT NULL, reason TEXT NOT NULL,
                         created_at_ms INTEGER NOT NULL, expires_at_ms INTEGER NOT NULL, PRIMARY KEY(project, digest));)",
    "ALTER TABLE refs ADD COLUMN quarantined INTEGER NOT NULL DEFAULT 0;",
    R"(CREATE TABLE checkpoints(id TEXT PRIMARY KEY, project TEXT NOT NULL, sandbox TEXT NOT NULL, parent TEXT NOT NULL, name TEXT NOT NULL,
                                layers TEXT NOT NULL, resources TEXT NOT NULL, bytes INTEGER NOT NULL, key TEXT NOT NULL,
                                created_at_ms INTEGER NOT NULL, expires_at_ms INTEGER NOT NULL);)",
};
constexpr int kFormat = static_cast<int>(std::size(kSteps));

struct CloseDatabase {
  void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;

Error database_error(sqlite3* db, std::string_view doing) {
  const int code = sqlite3_errcode(db);
  const bool full = code == SQLITE_FULL || code == SQLITE_BUSY;
  const bool damaged = code == SQLITE_CORRUPT || code == SQLITE_NOTADB;
  return Error(full ? ErrorCode::kExhausted : damaged ? ErrorCode::kDataFault : ErrorCode::kInternal,
               std::string(doing) + ": " + sqlite3_errmsg(db));
}

Result<void> execute(sqlite3* db, const std::string& sql) {
  if (sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) return database_error(db, "store");
  return {};
}

// One prepared statement, bound in order and stepped.
class Statement {
 public:
  static Result<Statement> prepare(sqlite3* db, const char* sql) {
    sqlite3_stmt* raw = nullptr;
    if (sqlite3_prepare_v2(db, sql, -1, &raw, nullptr) != SQLITE_OK) return database_error(db, "store");
    return Statement(db, raw);
  }
  Statement& bind(std::string_view text) {
    sqlite3_bind_text(statement_.get(), ++bound_, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
    return *this;
  }
  Statement& bind(std::int64_t number) {
    sqlite3_bind_int64(statement_.get(), ++bound_, number);
    return *this;
  }
  // true: a row is there.
  Result<bool> step() {
    const int rc = sqlite3_step(statement_.get());
    if (rc == SQLITE_ROW) return true;
    if (rc == SQLITE_DONE) return false;
    return database_error(db_, "store");
  }
  Result<void> run() {
    DSEC_TRY(step());
    sqlite3_reset(statement_.get());
    bound_ = 0;
    return {};
  }
  std::string text(int column) const {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
    return {bytes ? bytes : "", static_cast<std::size_t>(sqlite3_column_bytes(statement_.get(), column))};
  }
  std::int64_t number(int column) const { return sqlite3_column_int64(statement_.get(), column); }

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* s) const { sqlite3_finalize(s); }
  };
  Statement(sqlite3* db, sqlite3_stmt* raw) : db_(db), statement_(raw) {}
  sqlite3* db_;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  int bound_ = 0;
};

std::string list_text(const std::vector<std::string>& list) {
  json::array out;
  for (const std::string& item : list) out.emplace_back(item);
  return json::serialize(out);
}

Result<json::value> parse(const std::string& text) {
  boost::system::error_code failed;
  json::value value = json::parse(text, failed);
  if (failed) return Error(ErrorCode::kDataFault, "a row of the store is not JSON");
  return value;
}

Result<std::vector<std::string>> text_list(const std::string& text) {
  DSEC_ASSIGN(const json::value value, parse(text));
  std::vector<std::string> out;
  if (const json::array* array = value.if_array())
    for (const json::value& item : *array)
      if (const json::string* s = item.if_string()) out.emplace_back(s->data(), s->size());
  return out;
}

class SqliteStore final : public Store {
 public:
  explicit SqliteStore(Database db) : db_(std::move(db)) {}

  Result<void> put_project(const Project& p) override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "INSERT OR REPLACE INTO projects VALUES(?,?,?)"));
    return s.bind(p.name).bind(p.parent).bind(p.created_at_ms).run();
  }

  Result<std::vector<Project>> projects() override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "SELECT name, parent, created_at_ms FROM projects ORDER BY name"));
    std::vector<Project> out;
    for (;;) {
      DSEC_ASSIGN(const bool row, s.step());
      if (!row) return out;
      out.push_back({s.text(0), s.text(1), s.number(2)});
    }
  }

  Result<void> put_key(const ApiKey& k) override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "INSERT OR REPLACE INTO api_keys VALUES(?,?,?,?,?,?,?)"));
    return s.bind(k.id).bind(k.project).bind(k.name).bind(static_cast<std::int64_t>(k.role)).bind(k.hash).bind(k.created_at_ms).bind(k.revoked_at_ms).run();
  }

  Result<std::vector<ApiKey>> keys() override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "SELECT id, project, name, role, hash, created_at_ms, revoked_at_ms FROM api_keys ORDER BY created_at_ms, id"));
    std::vector<ApiKey> out;
    for (;;) {
      DSEC_ASSIGN(const bool row, s.step());
      if (!row) return out;
      out.push_back({s.text(0), s.text(1), s.text(2), static_cast<model::Role>(s.number(3)), s.text(4), s.number(5), s.number(6)});
    }
  }

  Result<void> put_ref(const Ref& r) override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "INSERT OR REPLACE INTO refs VALUES(?,?,?,?,?,?,?)"));
    return s.bind(r.project).bind(static_cast<std::int64_t>(r.kind)).bind(r.name).bind(r.tag).bind(list_text(r.layers)).bind(r.created_at_ms).bind(r.quarantined ? 1 : 0).run();
  }

  Result<std::vector<Ref>> refs() override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "SELECT project, kind, name, tag, layers, created_at_ms, quarantined FROM refs ORDER BY project, kind, name, tag"));
    std::vector<Ref> out;
    for (;;) {
      DSEC_ASSIGN(const bool row, s.step());
      if (!row) return out;
      DSEC_ASSIGN(std::vector<std::string> layers, text_list(s.text(4)));
      out.push_back({s.text(0), static_cast<RefKind>(s.number(1)), s.text(2), s.text(3), std::move(layers), s.number(5), s.number(6) != 0});
    }
  }

  Result<bool> remove_ref(const std::string& project, RefKind kind, const std::string& name, const std::string& tag) override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "DELETE FROM refs WHERE project=? AND kind=? AND name=? AND tag=?"));
    DSEC_TRY(s.bind(project).bind(static_cast<std::int64_t>(kind)).bind(name).bind(tag).run());
    return sqlite3_changes(db_.get()) > 0;
  }

  Result<void> put_service(const model::ServiceDefinition& service) override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "INSERT OR REPLACE INTO services VALUES(?,?)"));
    return s.bind(service.name).bind(json::serialize(model::to_json(service))).run();
  }

  Result<std::vector<model::ServiceDefinition>> services() override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "SELECT definition FROM services ORDER BY name"));
    std::vector<model::ServiceDefinition> out;
    for (;;) {
      DSEC_ASSIGN(const bool row, s.step());
      if (!row) return out;
      DSEC_ASSIGN(const json::value value, parse(s.text(0)));
      DSEC_ASSIGN(model::ServiceDefinition service, model::service_from_json(value));
      out.push_back(std::move(service));
    }
  }

  Result<bool> remove_service(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "DELETE FROM services WHERE name=?"));
    DSEC_TRY(s.bind(name).run());
    return sqlite3_changes(db_.get()) > 0;
  }

  Result<void> replace_unused_layers(const std::vector<UnusedLayer>& layers) override {
    const std::lock_guard lock(mutex_);
    return transaction([&]() -> Result<void> {
      DSEC_TRY(execute(db_.get(), "DELETE FROM unused_layers"));
      DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "INSERT INTO unused_layers VALUES(?,?,?)"));
      for (const UnusedLayer& layer : layers) DSEC_TRY(s.bind(layer.digest).bind(layer.since_ms).bind(layer.condemned_ms).run());
      return {};
    });
  }

  Result<std::vector<UnusedLayer>> unused_layers() override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "SELECT digest, since_ms, condemned_ms FROM unused_layers ORDER BY digest"));
    std::vector<UnusedLayer> out;
    for (;;) {
      DSEC_ASSIGN(const bool row, s.step());
      if (!row) return out;
      out.push_back({s.text(0), s.number(1), s.number(2)});
    }
  }

  Result<void> put_pin(const Pin& p) override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "INSERT OR REPLACE INTO pins VALUES(?,?,?,?,?,?)"));
    return s.bind(p.project).bind(p.digest).bind(p.owner).bind(p.reason).bind(p.created_at_ms).bind(p.expires_at_ms).run();
  }

  Result<std::vector<Pin>> pins() override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "SELECT project, digest, owner, reason, created_at_ms, expires_at_ms FROM pins ORDER BY project, digest"));
    std::vector<Pin> out;
    for (;;) {
      DSEC_ASSIGN(const bool row, s.step());
      if (!row) return out;
      out.push_back({s.text(0), s.text(1), s.text(2), s.text(3), s.number(4), s.number(5)});
    }
  }

  Result<bool> remove_pin(const std::string& project, const std::string& digest) override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "DELETE FROM pins WHERE project=? AND digest=?"));
    DSEC_TRY(s.bind(project).bind(digest).run());
    return sqlite3_changes(db_.get()) > 0;
  }

  Result<void> put_checkpoint(const Checkpoint& c) override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "INSERT OR REPLACE INTO checkpoints VALUES(?,?,?,?,?,?,?,?,?,?,?)"));
    s.bind(c.id).bind(c.project).bind(c.sandbox).bind(c.parent).bind(c.name).bind(list_text(c.layers));
    return s.bind(json::serialize(model::to_json(c.resources))).bind(static_cast<std::int64_t>(c.bytes)).bind(c.key).bind(c.created_at_ms).bind(c.expires_at_ms).run();
  }

  Result<std::vector<Checkpoint>> checkpoints() override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "SELECT id, project, sandbox, parent, name, layers, resources, bytes, key, created_at_ms, expires_at_ms "
                                                           "FROM checkpoints ORDER BY created_at_ms, id"));
    std::vector<Checkpoint> out;
    for (;;) {
      DSEC_ASSIGN(const bool row, s.step());
      if (!row) return out;
      Checkpoint c{.id = s.text(0), .project = s.text(1), .sandbox = s.text(2), .parent = s.text(3), .name = s.text(4)};
      DSEC_ASSIGN(c.layers, text_list(s.text(5)));
      DSEC_ASSIGN(const json::value resources, parse(s.text(6)));
      DSEC_TRY(model::merge_json(resources, "resources", c.resources));
      c.bytes = static_cast<std::uint64_t>(s.number(7));
      c.key = s.text(8);
      c.created_at_ms = s.number(9);
      c.expires_at_ms = s.number(10);
      out.push_back(std::move(c));
    }
  }

  Result<void> remove_checkpoints(const std::vector<std::string>& ids) override {
    const std::lock_guard lock(mutex_);
    return transaction([&]() -> Result<void> {
      DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "DELETE FROM checkpoints WHERE id=?"));
      for (const std::string& id : ids) DSEC_TRY(s.bind(id).run());
      return {};
    });
  }

  Result<void> put_operation(const OperationRecord& operation) override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "INSERT OR REPLACE INTO operations VALUES(?,?,?,?,?)"));
    DSEC_TRY(s.bind(operation.id).bind(operation.project).bind(operation.created_at_ms).bind(operation.running ? 1 : 0).bind(operation.record).run());
    if (operation.running) return {};
    return execute(db_.get(),
                   "DELETE FROM operations WHERE running=0 AND id NOT IN "
                   "(SELECT id FROM operations WHERE running=0 ORDER BY created_at_ms DESC LIMIT 1000)");
  }

  Result<std::vector<OperationRecord>> operations() override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "SELECT id,project,created_at_ms,running,record FROM operations ORDER BY created_at_ms,id"));
    std::vector<OperationRecord> out;
    for (;;) {
      DSEC_ASSIGN(const bool row, s.step());
      if (!row) return out;
      out.push_back({s.text(0), s.text(1), s.number(2), s.number(3) != 0, s.text(4)});
    }
  }

  Result<void> append_history(const std::vector<model::Sandbox>& ended) override {
    const std::lock_guard lock(mutex_);
    return transaction([&] { return insert_history(ended); });
  }

  Result<std::vector<model::Sandbox>> history(const std::string& project, const HistoryPlace& after, std::size_t limit) override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(),
                                                "SELECT record FROM sandbox_history WHERE project=? AND (created_at_ms,id)>(?,?) "
                                                "ORDER BY created_at_ms, id LIMIT ?"));
    return sandboxes(s.bind(project).bind(after.created_at_ms).bind(after.id).bind(static_cast<std::int64_t>(limit)));
  }

  Result<std::optional<model::Sandbox>> past(const std::string& project, const std::string& id) override {
    const std::lock_guard lock(mutex_);
    return one_past(project, id);
  }

  Result<std::optional<model::Sandbox>> find_past(const std::string& project, const std::string& ref) override {
    constexpr std::size_t kShortestPrefix = 4;
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(std::optional<model::Sandbox> exact, one_past(project, ref));
    if (exact || ref.empty()) return exact;
    if (ref.size() >= kShortestPrefix) {
      DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "SELECT record FROM sandbox_history WHERE id>? AND id<? AND project=? LIMIT 2"));
      DSEC_ASSIGN(std::vector<model::Sandbox> found, sandboxes(s.bind(ref).bind(ref + "\x7f").bind(project)));
      if (found.size() > 1) return Error(ErrorCode::kConflict, "\"" + ref + "\" is the beginning of more than one sandbox id");
      if (found.size() == 1) return std::optional(std::move(found[0]));
    }
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "SELECT record FROM sandbox_history WHERE project=? AND name=? ORDER BY ended_at_ms DESC LIMIT 1"));
    DSEC_ASSIGN(std::vector<model::Sandbox> named, sandboxes(s.bind(project).bind(ref)));
    return named.empty() ? std::optional<model::Sandbox>() : std::optional(std::move(named[0]));
  }

  Result<void> erase_history(const std::vector<std::string>& ids) override {
    const std::lock_guard lock(mutex_);
    return transaction([&]() -> Result<void> {
      DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "DELETE FROM sandbox_history WHERE id=?"));
      for (const std::string& id : ids) DSEC_TRY(s.bind(id).run());
      return {};
    });
  }

  Result<void> trim_history(std::int64_t before_ms, std::size_t most) override {
    const std::lock_guard lock(mutex_);
    DSEC_ASSIGN(Statement old, Statement::prepare(db_.get(), "DELETE FROM sandbox_history WHERE ended_at_ms<?"));
    DSEC_TRY(old.bind(before_ms).run());
    DSEC_ASSIGN(Statement many, Statement::prepare(db_.get(),
                                                   "DELETE FROM sandbox_history WHERE id IN "
                                                   "(SELECT id FROM sandbox_history ORDER BY ended_at_ms DESC LIMIT -1 OFFSET ?)"));
    return many.bind(static_cast<std::int64_t>(most)).run();
  }

 private:
  template <typename Work>
  Result<void> transaction(Work work) {
    DSEC_TRY(execute(db_.get(), "BEGIN IMMEDIATE"));
    Result<void> done = work();
    if (done.ok()) done = execute(db_.get(), "COMMIT");
    if (!done.ok()) (void)execute(db_.get(), "ROLLBACK");  // the first error is the one to tell
    return done;
  }

  // What a statement's "record" column holds, row for row.
  static Result<std::vector<model::Sandbox>> sandboxes(Statement& s) {
    std::vector<model::Sandbox> out;
    for (;;) {
      DSEC_ASSIGN(const bool row, s.step());
      if (!row) return out;
      DSEC_ASSIGN(const json::value value, parse(s.text(0)));
      DSEC_ASSIGN(model::Sandbox sandbox, model::sandbox_from_json(value));
      out.push_back(std::move(sandbox));
    }
  }

  Result<std::optional<model::Sandbox>> one_past(const std::string& project, const std::string& id) {
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(), "SELECT record FROM sandbox_history WHERE id=? AND project=?"));
    DSEC_ASSIGN(std::vector<model::Sandbox> found, sandboxes(s.bind(id).bind(project)));
    return found.empty() ? std::optional<model::Sandbox>() : std::optional(std::move(found[0]));
  }

  Result<void> insert_history(const std::vector<model::Sandbox>& ended) {
    DSEC_ASSIGN(Statement s, Statement::prepare(db_.get(),
                                                "INSERT OR REPLACE INTO sandbox_history(id,project,ended_at_ms,record,created_at_ms,name) VALUES(?,?,?,?,?,?)"));
    for (const model::Sandbox& sandbox : ended)
      DSEC_TRY(s.bind(sandbox.id)
                   .bind(sandbox.project)
                   .bind(sandbox.ended_at_ms)
                   .bind(json::serialize(model::to_json(sandbox)))
                   .bind(sandbox.created_at_ms)
                   .bind(sandbox.spec.name)
                   .run());
    return {};
  }

  std::mutex mutex_;  // one connection: guards db_ for the length of a call
  Database db_;
};

Result<std::int64_t> format_of(sqlite3* db) {
  DSEC_ASSIGN(Statement s, Statement::prepare(db, "PRAGMA user_version"));
  DSEC_TRY(s.step());
  return s.number(0);
}

}  // namespace

Result<std::unique_ptr<Store>> open_sqlite_store(const std::string& path) {
  sqlite3* raw = nullptr;
  const int rc = sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, nullptr);
  Database db(raw);
  if (rc != SQLITE_OK) return database_error(raw, "open " + path);
  sqlite3_busy_timeout(db.get(), 2000);
  DSEC_TRY(execute(db.get(), "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON").within(path));
  DSEC_ASSIGN(const std::int64_t format, format_of(db.get()));
  if (format > kFormat) return Error(ErrorCode::kDataFault, path + " was written by a newer dsec");
  for (std::int64_t step = format; step < kFormat; step++)
    DSEC_TRY(execute(db.get(), "BEGIN;" + std::string(kSteps[step]) + "PRAGMA user_version=" + std::to_string(step + 1) + ";COMMIT").within("migrate " + path));
  return std::unique_ptr<Store>(new SqliteStore(std::move(db)));
}

}  // namespace dsec::store
