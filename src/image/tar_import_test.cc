#include <fcntl.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include <boost/json/value.hpp>

#include <thread>

#include "image/image_fixture.h"
#include "model/json.h"

namespace dsec::image {
namespace {

class TarImportTest : public ImageTest {};

TEST_F(TarImportTest, PutsFilesBelowTheGivenPlaceWithOwnersModesAndTimes) {
  TarFixture tar;
  tar.directory("./", 0750).directory("./src/", 0700);
  tar.add({.name = "./src/run.sh", .data = "#!/bin/sh\n", .mode = 04755, .uid = 1000, .gid = 100, .mtime = 1'600'000'000});
  tar.symlink("./link", "/etc/passwd").hard_link("./again", "./src/run.sh");

  const auto record = import_tar(tar.finished(), {.kind = model::LayerKind::kWorkspace, .at = "/work/project", .source_label = "test"});

  ASSERT_TRUE(record.ok()) << record.error().message();
  EXPECT_EQ(record->setuid_files, 1u);
  EXPECT_EQ(record->content_bytes, 10u);
  EXPECT_EQ(record->source, "test");
  const int mount = store_->mount(record->digest).value();
  EXPECT_EQ(content(mount, "work/project/src/run.sh"), "#!/bin/sh\n");
  const auto file = stat_of(mount, "work/project/src/run.sh");
  EXPECT_EQ(file.st_mode, S_IFREG | 04755u);
  EXPECT_EQ(file.st_uid, 1000u);
  EXPECT_EQ(file.st_gid, 100u);
  EXPECT_EQ(file.st_mtim.tv_sec, 1'600'000'000);
  EXPECT_EQ(file.st_nlink, 2u);
  EXPECT_EQ(stat_of(mount, "work/project").st_mode, S_IFDIR | 0750u);
  EXPECT_EQ(stat_of(mount, "work").st_mode, S_IFDIR | 0755u);
  EXPECT_EQ(stat_of(mount, ".").st_mode, S_IFDIR | 0755u);
  EXPECT_EQ(stat_of(mount, "work/project/link").st_mode & S_IFMT, static_cast<unsigned>(S_IFLNK));
}

TEST_F(TarImportTest, ListsFilesWithSetIdBitsAndCapabilitiesInTheRecord) {
  TarFixture tar;
  tar.file("plain", "x").file("su", "x", 04755).file("wall", "x", 02755).hard_link("again", "su");
  const std::string raw = std::string("\1\0\0\2\0\x30\0\0", 8) + std::string(12, '\0');
  tar.pax("SCHILY.xattr.security.capability", raw).file("ping", "x");

  const auto record = import_tar(tar.finished());

  ASSERT_TRUE(record.ok()) << record.error().message();
  EXPECT_EQ(record->setuid_files, 2u);
  EXPECT_EQ(record->capability_files, 1u);
  using Files = std::vector<model::PrivilegedFile>;
  EXPECT_EQ(record->privileged_files, (Files{{"/again", 04755, ""}, {"/ping", 0644, "cap_net_admin,cap_net_raw=ep"}, {"/wall", 02755, ""}}));
  EXPECT_EQ(model::layer_from_json(model::to_json(*record)).value(), *record);
}

TEST_F(TarImportTest, StoresContentInTheProfileThatWasAskedFor) {
  const std::string tar = TarFixture().file("f", std::string(100'000, 'x')).finished();

  const auto packed = import_tar(tar, {.kind = model::LayerKind::kWorkspace, .profile = erofs::Profile::kLz4});
  const auto plain = import_tar(tar, {.kind = model::LayerKind::kWorkspace, .profile = erofs::Profile::kPlain});

  ASSERT_TRUE(packed.ok() && plain.ok());
  EXPECT_EQ(packed->profile, "lz4");
  EXPECT_EQ(plain->profile, "plain");
  EXPECT_LT(packed->size_bytes, 20'000u);
  EXPECT_GT(plain->size_bytes, 100'000u);
  EXPECT_EQ(content(store_->mount(plain->digest).value(), "f"), std::string(100'000, 'x'));
}

TEST_F(TarImportTest, GivesABaseTheDirectoriesThatSandboxesMountOn) {
  const auto record = import_tar(TarFixture().directory("./", 0700).directory("usr").finished(), {.kind = model::LayerKind::kBase});

  ASSERT_TRUE(record.ok()) << record.error().message();
  const int mount = store_->mount(record->digest).value();
  for (const char* name : {"proc", "sys", "dev", "run", "etc"}) EXPECT_EQ(stat_of(mount, name).st_mode, S_IFDIR | 0755u) << name;
  EXPECT_EQ(stat_of(mount, "tmp").st_mode, S_IFDIR | 01777u);
  EXPECT_EQ(stat_of(mount, ".").st_mode, S_IFDIR | 0755u);
}

TEST_F(TarImportTest, MakesTheSameImageOfTheSameArchive) {
  TarFixture tar;
  for (int i = 0; i < 300; i++) tar.file("d" + std::to_string(i % 7) + "/f" + std::to_string(i), std::string(static_cast<std::size_t>(i * 37), static_cast<char>('a' + i % 26)));
  tar.pax("SCHILY.xattr.user.note", "kept").file("marked", "x");

  const auto first = import_tar(tar.finished());
  ASSERT_TRUE(first.ok()) << first.error().message();
  ASSERT_TRUE(store_->remove(first->digest).ok());
  const auto second = import_tar(tar.finished());

  ASSERT_TRUE(second.ok()) << second.error().message();
  EXPECT_EQ(first->digest, second->digest);
}

TEST_F(TarImportTest, ReadsEveryCompressionByItsFirstBytes) {
  const std::string plain = TarFixture().file("hello", "world").finished();
  std::string digest;
  for (const std::string tool : {"cat", "gzip", "zstd", "xz"}) {
    const std::string path = directory_ + "/plain";
    ASSERT_TRUE(sys::replace_file(path, plain, 0600).ok());
    ASSERT_EQ(std::system((tool + " < " + path + " > " + directory_ + "/packed").c_str()), 0) << tool;

    const auto record = import_tar(sys::read_file(directory_ + "/packed").value());

    ASSERT_TRUE(record.ok()) << tool << ": " << record.error().message();
    if (digest.empty()) digest = record->digest;
    EXPECT_EQ(record->digest, digest) << tool;
  }
}

TEST_F(TarImportTest, KeepsNamesThatAreNotText) {
  TarFixture tar;
  const std::string raw = "raw-\xff\xfe-name";
  const std::string accented = "caf\xc3\xa9";
  const std::string long_name = std::string(120, 'd') + "/" + std::string(200, 'n');
  tar.file(raw, "1").pax("path", accented).file("short", "2").long_name(long_name).file("short", "3").pax("path", "pax-" + raw).file("short", "4");

  const auto record = import_tar(tar.finished());

  ASSERT_TRUE(record.ok()) << record.error().message();
  const int mount = store_->mount(record->digest).value();
  EXPECT_EQ(content(mount, raw), "1");
  EXPECT_EQ(content(mount, accented), "2");
  EXPECT_EQ(content(mount, long_name), "3");
  EXPECT_EQ(content(mount, "pax-" + raw), "4");
}

TEST_F(TarImportTest, CarriesHarmlessAttributesAndDropsTheRest) {
  TarFixture tar;
  const std::string capability("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", 20);
  tar.pax("SCHILY.xattr.user.note", "kept").file("note", "x");
  tar.pax("SCHILY.xattr.security.capability", capability).file("ping", "x");
  tar.pax("SCHILY.xattr.trusted.overlay.opaque", "y").directory("opaque");
  tar.pax("SCHILY.xattr.user.overlay.opaque", "y").directory("opaque2");
  tar.add({.name = "null", .type = '3'}).add({.name = "disk", .type = '4'}).add({.name = "pipe", .type = '6'});

  const auto record = import_tar(tar.finished());

  ASSERT_TRUE(record.ok()) << record.error().message();
  const int mount = store_->mount(record->digest).value();
  char value[64];
  const sys::Fd note = sys::open_at(mount, "note", O_RDONLY).value();
  ASSERT_EQ(::fgetxattr(note.get(), "user.note", value, sizeof value), 4);
  const sys::Fd ping = sys::open_at(mount, "ping", O_RDONLY).value();
  EXPECT_EQ(::fgetxattr(ping.get(), "security.capability", value, sizeof value), 20);
  for (const char* name : {"opaque", "opaque2"}) {
    const sys::Fd directory = sys::open_at(mount, name, O_RDONLY).value();
    EXPECT_LT(::fgetxattr(directory.get(), "trusted.overlay.opaque", value, sizeof value), 0);
    EXPECT_LT(::fgetxattr(directory.get(), "user.overlay.opaque", value, sizeof value), 0);
  }
  EXPECT_FALSE(exists(mount, "null"));
  EXPECT_FALSE(exists(mount, "disk"));
  EXPECT_EQ(stat_of(mount, "pipe").st_mode & S_IFMT, static_cast<unsigned>(S_IFIFO));
}

TEST_F(TarImportTest, GivesOwnersThatNoSandboxHasToNobodyWithoutTheirSetIdBits) {
  const auto record = import_tar(TarFixture().add({.name = "f", .mode = 06755, .uid = 70000, .gid = 5}).finished());

  ASSERT_TRUE(record.ok()) << record.error().message();
  const auto st = stat_of(store_->mount(record->digest).value(), "f");
  EXPECT_EQ(st.st_uid, 65534u);
  EXPECT_EQ(st.st_gid, 5u);
  EXPECT_EQ(st.st_mode & 07777, 02755u);
}

TEST_F(TarImportTest, KeepsHolesAndTheLastOfTwoFilesOfOneName) {
  TarFixture sparse;
  const std::string map = "1\n8192\n4\n";
  const std::string data = map + std::string(512 - map.size(), '\0') + "data";
  const std::string records = "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n29 GNU.sparse.name=with-hole\n29 GNU.sparse.realsize=16384\n";
  sparse.add({.name = "pax", .type = 'x', .data = records}).file("GNUSparseFile.0/with-hole", data);
  TarFixture both;
  both.file("twice", "old").file("twice", "new").directory("d", 0700).directory("d", 0711).file("empty", "").hard_link("name", "twice").file("twice", "newest");

  const auto record = import_tar(both.unfinished() + sparse.finished());

  ASSERT_TRUE(record.ok()) << record.error().message();
  const int mount = store_->mount(record->digest).value();
  EXPECT_EQ(content(mount, "twice"), "newest");
  EXPECT_EQ(content(mount, "name"), "new");
  EXPECT_EQ(stat_of(mount, "d").st_mode & 07777, 0711u);
  EXPECT_LT(record->size_bytes, 16384u);  // the holes take no room
  EXPECT_EQ(content(mount, "with-hole"), std::string(8192, '\0') + "data" + std::string(8188, '\0'));
}

// --- hostile archives ------------------------------------------------------

struct Hostile {
  const char* what;
  std::string archive;
  ErrorCode code = ErrorCode::kInvalidArgument;
};

std::string truncated(const std::string& bytes, std::size_t by) { return bytes.substr(0, bytes.size() - by); }

std::vector<Hostile> hostile_archives() {
  const auto broken_checksum = [] {
    std::string bytes = TarFixture().file("f", "x").finished();
    bytes[148] = '7';
    return bytes;
  };
  TarFixture deep;
  std::string path = "d";
  for (int i = 0; i < 300; i++) path += "/d";
  deep.pax("path", path).file("x", "x");
  TarFixture many;
  for (int i = 0; i < 2001; i++) many.file("f" + std::to_string(i), "");
  TarFixture implied;
  for (int i = 0; i < 60; i++) {
    std::string below = "i" + std::to_string(i);
    for (int level = 0; level < 40; level++) below += "/d";
    implied.pax("path", below + "/f").file("x", "");
  }
  return {
      {"a name that leads upwards", TarFixture().file("../escape", "x").finished()},
      {"a name that leads upwards later", TarFixture().file("a/../../escape", "x").finished()},
      {"a name that ends upwards", TarFixture().directory("a/..").finished()},
      {"an absolute name", TarFixture().file("/etc/passwd", "x").finished()},
      {"an absolute name in a pax header", TarFixture().pax("path", "/etc/passwd").file("x", "x").finished()},
      {"an upward name in a long name", TarFixture().long_name("../../" + std::string(100, 'a')).file("x", "x").finished()},
      {"a file through a link that leads out", TarFixture().symlink("out", "/work").file("out/layer.erofs", "x").finished()},
      {"a file through a link that leads up", TarFixture().symlink("up", "..").file("up/escape", "x").finished()},
      {"a file through a link that stays inside", TarFixture().directory("a").symlink("b", "a").file("b/f", "x").finished()},
      {"a directory turned into a link", TarFixture().directory("d").file("d/f", "x").symlink("d", "/usr").finished()},
      {"a link turned into a directory", TarFixture().symlink("d", "/usr").directory("d").file("d/f", "x").finished()},
      {"a file turned into a directory", TarFixture().file("d", "x").directory("d").finished()},
      {"a file used as a directory", TarFixture().file("d", "x").file("d/f", "x").finished()},
      {"a hard link that leads upwards", TarFixture().hard_link("h", "../../etc/passwd").finished()},
      {"a hard link to an absolute name", TarFixture().hard_link("h", "/etc/passwd").finished()},
      {"a hard link through a link", TarFixture().symlink("u", "/usr").hard_link("h", "u/bin/env").finished()},
      {"a hard link to nothing", TarFixture().hard_link("h", "nowhere").finished()},
      {"a hard link to a directory", TarFixture().directory("d").hard_link("h", "d").finished()},
      {"a hard link to itself", TarFixture().file("h", "x").hard_link("h", "h").finished()},
      {"a hard link to the root", TarFixture().hard_link("h", ".").finished()},
      {"a link without a target", TarFixture().symlink("l", "").finished()},
      {"a root that is a file", TarFixture().file(".", "x").finished()},
      {"a root that is a link", TarFixture().symlink("./", "/usr").finished()},
      {"no end mark", TarFixture().file("f", "x").unfinished()},
      {"an end in the data", truncated(TarFixture().file("f", std::string(5000, 'x')).unfinished(), 3000)},
      {"an end in a header", truncated(TarFixture().file("f", "").unfinished(), 100)},
      {"a size that is not there", TarFixture().add({.name = "f", .data = "x", .claimed_size = 1 << 20}).finished()},
      {"a size past the limit", TarFixture().add({.name = "f", .data = "x", .claimed_size = 1LL << 32}).finished(), ErrorCode::kTooLarge},
      {"a hole past the limit", TarFixture().pax("GNU.sparse.realsize", "1000000000000").pax("GNU.sparse.size", "1000000000000").add({.name = "f", .data = "x", .claimed_size = 1LL << 33}).finished(), ErrorCode::kTooLarge},
      {"too many entries", many.finished(), ErrorCode::kTooLarge},
      {"too many directories in between", implied.finished(), ErrorCode::kTooLarge},
      {"a tree too deep", deep.finished()},
      {"a component too long", TarFixture().pax("path", std::string(300, 'n')).file("x", "x").finished()},
      {"a path too long", TarFixture().pax("path", std::string(200, 'n') + [] { std::string p; for (int i = 0; i < 20; i++) p += "/" + std::string(200, 'n'); return p; }()).file("x", "x").finished()},
      {"a broken checksum", broken_checksum()},
      {"noise", std::string(4096, '\x5a')},
      {"nothing", ""},
      {"a zip", std::string("PK\x03\x04", 4) + std::string(2048, '\0')},
      {"a forged capability", TarFixture().pax("SCHILY.xattr.security.capability", "nonsense").file("f", "x").finished()},
  };
}

TEST_F(TarImportTest, RefusesHostileArchivesByTypeAndLeavesNothing) {
  int refused = 0;
  for (const Hostile& hostile : hostile_archives()) {
    const auto record = import_tar(hostile.archive, {.kind = model::LayerKind::kWorkspace, .max_bytes = 64 << 20, .max_entries = 2000});

    EXPECT_FALSE(record.ok()) << hostile.what;
    if (!record.ok()) {
      EXPECT_EQ(record.error().code(), hostile.code) << hostile.what << ": " << record.error().message();
      refused++;
    }
    EXPECT_EQ(leftovers(), std::vector<std::string>()) << hostile.what;
  }
  EXPECT_GE(refused, 30);
}

TEST_F(TarImportTest, RefusesABombThatIsPackedTwice) {
  ASSERT_TRUE(sys::replace_file(directory_ + "/t", TarFixture().file("f", std::string(1 << 20, '\0')).finished(), 0600).ok());
  ASSERT_EQ(std::system(("gzip < " + directory_ + "/t | gzip > " + directory_ + "/tt").c_str()), 0);

  const auto record = import_tar(sys::read_file(directory_ + "/tt").value());

  ASSERT_FALSE(record.ok());
  EXPECT_EQ(record.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(leftovers().empty());
}

TEST_F(TarImportTest, RefusesABombInsideGzip) {
  ASSERT_EQ(std::system(("head -c 200000000 /dev/zero > " + directory_ + "/z && tar -C " + directory_ + " -czf " + directory_ + "/bomb z").c_str()), 0);
  const sys::Fd fd = sys::open_at(AT_FDCWD, directory_ + "/bomb", O_RDONLY).value();

  const auto record = importer_->import_tar(fd.get(), {.kind = model::LayerKind::kWorkspace, .max_bytes = 100'000'000});

  ASSERT_FALSE(record.ok());
  EXPECT_EQ(record.error().code(), ErrorCode::kTooLarge);
  EXPECT_TRUE(leftovers().empty());
}

TEST_F(TarImportTest, RefusesAGzipThatIsCut) {
  ASSERT_TRUE(sys::replace_file(directory_ + "/t", TarFixture().file("f", std::string(1 << 20, 'q')).finished(), 0600).ok());
  ASSERT_EQ(std::system(("gzip < " + directory_ + "/t | head -c 700 > " + directory_ + "/tt").c_str()), 0);

  const auto record = import_tar(sys::read_file(directory_ + "/tt").value());

  ASSERT_FALSE(record.ok());
  EXPECT_EQ(record.error().code(), ErrorCode::kInvalidArgument) << record.error().message();
  EXPECT_TRUE(leftovers().empty());
}

// --- the worker ------------------------------------------------------------

TEST_F(TarImportTest, ShutsTheWorkerIn) {
  const auto facts = importer_->probe();

  ASSERT_TRUE(facts.ok()) << facts.error().message();
  EXPECT_EQ(facts->at("host_uid"), "990000");
  EXPECT_EQ(facts->at("pid"), "1");
  EXPECT_EQ(facts->at("groups"), "0");
  EXPECT_EQ(facts->at("shadow"), "No such file or directory");
  EXPECT_EQ(facts->at("host_root"), "No such file or directory");
  EXPECT_EQ(facts->at("write_usr"), "Read-only file system");
  EXPECT_EQ(facts->at("write_root"), "Read-only file system");
  EXPECT_EQ(facts->at("write_work"), "allowed");
  EXPECT_EQ(facts->at("internet_socket"), "Function not implemented");
  EXPECT_EQ(facts->at("unix_socket"), "Function not implemented");
  EXPECT_EQ(facts->at("namespace"), "Function not implemented");
  EXPECT_EQ(facts->at("mount"), "Function not implemented");
  EXPECT_EQ(facts->at("trace"), "Function not implemented");
  EXPECT_EQ(facts->at("device"), "Operation not permitted");
  // CHOWN, DAC_OVERRIDE, FOWNER, FSETID and SETFCAP, over its own ids only.
  EXPECT_EQ(facts->at("capabilities"), std::to_string(1ULL << 0 | 1ULL << 1 | 1ULL << 3 | 1ULL << 4 | 1ULL << 31));
  EXPECT_TRUE(leftovers().empty());
}

TEST_F(TarImportTest, EndsAtOnceWhenCancelledAndLeavesNothing) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const sys::Fd read(ends[0]);
  const sys::Fd write(ends[1]);
  const std::string head = TarFixture().file("f", "x").unfinished();
  ASSERT_TRUE(sys::write_all(write.get(), head).ok());
  std::atomic<bool> cancelled = false;
  ImportOptions options{.kind = model::LayerKind::kWorkspace, .cancelled = &cancelled};
  options.on_progress = [&](const ImportProgress&) { cancelled = true; };
  std::thread later([&] { cancelled = true; });

  const auto record = importer_->import_tar(read.get(), options);
  later.join();

  ASSERT_FALSE(record.ok());
  EXPECT_EQ(record.error().code(), ErrorCode::kCancelled);
  EXPECT_TRUE(leftovers().empty());
  EXPECT_LT(::waitpid(-1, nullptr, WNOHANG), 0);  // and no process
}

TEST_F(TarImportTest, EndsAtItsDeadline) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const sys::Fd read(ends[0]);
  const sys::Fd write(ends[1]);

  const auto record = importer_->import_tar(read.get(), {.kind = model::LayerKind::kWorkspace, .time_limit = std::chrono::seconds(1)});

  ASSERT_FALSE(record.ok());
  EXPECT_EQ(record.error().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(leftovers().empty());
}

TEST_F(TarImportTest, RemovesWhatACrashLeftInTheWorkDirectory) {
  std::filesystem::create_directories(directory_ + "/import/job-7/tree/a/b");
  ASSERT_TRUE(sys::replace_file(directory_ + "/import/job-7/tree/a/b/f", "x", 0600).ok());

  open();

  EXPECT_TRUE(leftovers().empty());
}

TEST_F(TarImportTest, CarriesARealTreeByteForByte) {
  const std::string tree = std::filesystem::exists("/usr/lib/python3") ? "/usr/lib/python3" : "/usr/share/doc";
  ASSERT_EQ(std::system(("tar -C " + tree + " -cf " + directory_ + "/tree.tar . /usr/share/doc/bash 2>/dev/null").c_str()), 0);
  const sys::Fd fd = sys::open_at(AT_FDCWD, directory_ + "/tree.tar", O_RDONLY).value();

  const auto record = importer_->import_tar(fd.get(), {.kind = model::LayerKind::kToolkit});

  ASSERT_TRUE(record.ok()) << record.error().message();
  const int mount = store_->mount(record->digest).value();
  std::size_t compared = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(tree)) {
    const std::string inside = entry.path().lexically_relative(tree);  // not relative(): that follows links
    const auto wanted = stat_of(AT_FDCWD, entry.path());
    const auto found = stat_of(mount, inside);
    ASSERT_EQ(found.st_mode, wanted.st_mode) << inside;
    ASSERT_EQ(found.st_uid, wanted.st_uid) << inside;
    ASSERT_EQ(found.st_mtim.tv_sec, wanted.st_mtim.tv_sec) << inside;
    if (S_ISREG(wanted.st_mode)) ASSERT_EQ(content(mount, inside), content(AT_FDCWD, entry.path())) << inside;
    compared++;
  }
  EXPECT_GT(compared, 10u);
}

// Also with more content than any buffer holds, and whatever the host has free.
TEST_F(TarImportTest, MakesTheSameImageWithAnyMemory) {
  TarFixture tar;
  for (int i = 0; i < 200; i++) {
    tar.add({.name = "d" + std::to_string(i % 5) + "/f" + std::to_string(i), .data = std::string(20000, static_cast<char>('a' + i % 26)), .mode = 04755, .uid = 1000});
    tar.pax("SCHILY.xattr.user.note", std::to_string(i)).hard_link("d" + std::to_string(i % 5) + "/h" + std::to_string(i), "d" + std::to_string(i % 5) + "/f" + std::to_string(i));
  }
  const auto in_memory = import_tar(tar.finished());
  ASSERT_TRUE(in_memory.ok()) << in_memory.error().message();

  std::string digests;
  for (const std::uint64_t memory : {0, 2 << 20}) {
    auto importer = Importer::create({.work_directory = directory_ + "/import", .helper = std::filesystem::read_symlink("/proc/self/exe"), .memory_bytes = memory}, *store_);
    const sys::Fd fd = input(tar.finished());
    const auto record = (*importer)->import_tar(fd.get(), {.kind = model::LayerKind::kWorkspace});

    ASSERT_TRUE(record.ok()) << record.error().message();
    EXPECT_EQ(record->digest, in_memory->digest) << memory;
  }
}

}  // namespace
}  // namespace dsec::image
