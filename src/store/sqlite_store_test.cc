#include "store/sqlite_store.h"

#include <gtest/gtest.h>
#include <sqlite3.h>

#include "sys/file.h"

namespace dsec::store {
namespace {

class SqliteStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(directory_), nullptr); }
  void TearDown() override { (void)sys::remove_tree_at(AT_FDCWD, directory_); }
  std::unique_ptr<Store> open() {
    auto store = open_sqlite_store(path());
    EXPECT_TRUE(store.ok()) << store.error().message();
    return std::move(store).value();
  }
  std::string path() const { return std::string(directory_) + "/dsec.db"; }
  char directory_[32] = "/tmp/dsec-store-XXXXXX";
};

TEST_F(SqliteStoreTest, KeepsEverythingOverAReopen) {
  {
    auto store = open();
    ASSERT_TRUE(store->put_project({"team", "default", 5}).ok());
    ASSERT_TRUE(store->put_key({"key_1", "team", "ci", model::Role::kAdmin, "ab12", 6, 0}).ok());
    ASSERT_TRUE(store->put_ref({"team", RefKind::kToolkit, "tools", "1", {"sha256:a", "sha256:b"}, 7}).ok());
    ASSERT_TRUE(store->put_service({.name = "pypi", .hosts = {{"example.org", 443, {}}}, .source = "test"}).ok());
  }
  auto store = open();

  EXPECT_EQ(store->projects()->at(0).parent, "default");
  EXPECT_EQ(store->keys()->at(0).role, model::Role::kAdmin);
  EXPECT_EQ(store->refs()->at(0).layers, (std::vector<std::string>{"sha256:a", "sha256:b"}));
  EXPECT_EQ(store->services()->at(0).hosts.at(0).host, "example.org");
}

TEST_F(SqliteStoreTest, ARefIsReplacedAndRemovedOnce) {
  auto store = open();
  ASSERT_TRUE(store->put_ref({"p", RefKind::kImage, "debian", "12", {"sha256:old"}, 1}).ok());
  ASSERT_TRUE(store->put_ref({"p", RefKind::kImage, "debian", "12", {"sha256:new"}, 2}).ok());

  ASSERT_EQ(store->refs()->size(), 1u);
  EXPECT_EQ(store->refs()->at(0).layers.at(0), "sha256:new");
  EXPECT_TRUE(store->remove_ref("p", RefKind::kImage, "debian", "12").value());
  EXPECT_FALSE(store->remove_ref("p", RefKind::kImage, "debian", "12").value());
}

// Format 2 had no columns for the creation and the name.
TEST_F(SqliteStoreTest, AnOlderHistoryIsMigratedWithNamesAndTimesOfCreation) {
  model::Sandbox sandbox;
  sandbox.id = "old";
  sandbox.project = "p";
  sandbox.spec.name = "named";
  sandbox.state = model::SandboxState::kEnded;
  sandbox.created_at_ms = 1'796'036'156'123;
  sandbox.ended_at_ms = sandbox.created_at_ms + 5;
  ASSERT_TRUE(open()->append_history({sandbox}).ok());
  sqlite3* raw = nullptr;
  ASSERT_EQ(sqlite3_open(path().c_str(), &raw), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(raw,
                         "DROP TABLE checkpoints; DROP TABLE pins; DROP TABLE unused_layers; ALTER TABLE refs DROP COLUMN quarantined;"
                         "DROP INDEX sandbox_history_by_creation; DROP INDEX sandbox_history_by_name;"
                         "ALTER TABLE sandbox_history DROP COLUMN name; ALTER TABLE sandbox_history DROP COLUMN created_at_ms; PRAGMA user_version=2",
                         nullptr, nullptr, nullptr),
            SQLITE_OK)
      << sqlite3_errmsg(raw);
  sqlite3_close(raw);

  auto store = open();

  EXPECT_EQ((*store->find_past("p", "named"))->id, "old");
  EXPECT_EQ(store->history("p", {sandbox.created_at_ms - 1, "old"}, 10)->size(), 1u);
  EXPECT_TRUE(store->history("p", {sandbox.created_at_ms, "old"}, 10)->empty());
}

TEST_F(SqliteStoreTest, ANewerFormatIsRefusedAndLeftAlone) {
  { auto store = open(); }
  sqlite3* raw = nullptr;
  ASSERT_EQ(sqlite3_open(path().c_str(), &raw), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(raw, "PRAGMA user_version=999", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(raw);

  const auto store = open_sqlite_store(path());

  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.error().code(), ErrorCode::kDataFault);
}

TEST_F(SqliteStoreTest, AFileThatIsNoDatabaseIsADataFault) {
  ASSERT_TRUE(sys::replace_file(path(), std::string(8192, 'x'), 0600).ok());

  const auto store = open_sqlite_store(path());

  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.error().code(), ErrorCode::kDataFault);
}

}  // namespace
}  // namespace dsec::store
