// What the tests of this folder share: a keeper in memory, a node's directories
// on a real filesystem, and a store and importer over them.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "image/importer.h"
#include "image/layer_store.h"
#include "image/tar_fixture.h"
#include "sys/descriptor_keeper.h"
#include "sys/file.h"

namespace dsec::image {

class MemoryKeeper final : public sys::DescriptorKeeper {
 public:
  Result<void> put(const std::string& name, int fd) override {
    DSEC_ASSIGN(kept[name], sys::duplicate(fd));
    return {};
  }
  Result<std::vector<sys::KeptDescriptor>> get(const std::string& prefix) override {
    std::vector<sys::KeptDescriptor> out;
    for (const auto& [name, fd] : kept) {
      if (!name.starts_with(prefix)) continue;
      DSEC_ASSIGN(sys::Fd copy, sys::duplicate(fd.get()));
      out.push_back({name, std::move(copy)});
    }
    return out;
  }
  Result<void> drop(const std::string& name) override {
    kept.erase(name);
    return {};
  }
  std::map<std::string, sys::Fd> kept;
};

class ImageTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root: mounts and user namespaces";
    char name[] = "/tmp/dsec-image-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
    open();
  }
  void TearDown() override {
    importer_.reset();
    store_.reset();
    keeper_.kept.clear();
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }
  void open() {
    importer_.reset();
    store_.reset();
    auto store = LayerStore::open(directory_ + "/layers", keeper_);
    ASSERT_TRUE(store.ok()) << store.error().message();
    store_ = std::move(store).value();
    auto importer = Importer::create({.work_directory = directory_ + "/import", .helper = std::filesystem::read_symlink("/proc/self/exe")}, *store_);
    ASSERT_TRUE(importer.ok()) << importer.error().message();
    importer_ = std::move(importer).value();
  }
  // A file with these bytes, open at its start.
  sys::Fd input(const std::string& bytes) const {
    const std::string path = directory_ + "/input";
    EXPECT_TRUE(sys::replace_file(path, bytes, 0600).ok());
    return sys::open_at(AT_FDCWD, path, O_RDONLY).value();
  }
  Result<model::LayerRecord> import_tar(const std::string& bytes, ImportOptions options = {.kind = model::LayerKind::kWorkspace}) {
    const sys::Fd fd = input(bytes);
    return importer_->import_tar(fd.get(), options);
  }
  // Everything below the store's and the importer's directories.
  std::vector<std::string> leftovers() const {
    std::vector<std::string> out;
    for (const char* part : {"/layers", "/import"}) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_ + part)) out.push_back(entry.path());
    }
    return out;
  }
  static std::string content(int mount, const std::string& path) {
    const Result<std::string> text = sys::read_file_at(mount, path, 64 << 20);
    return text.ok() ? *text : "<" + text.error().message() + ">";
  }
  static struct stat stat_of(int mount, const std::string& path) {
    struct stat st{};
    if (::fstatat(mount, path.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) st.st_mode = 0;
    return st;
  }
  static bool exists(int mount, const std::string& path) { return stat_of(mount, path).st_mode != 0; }

  std::string directory_;
  MemoryKeeper keeper_;
  std::unique_ptr<LayerStore> store_;
  std::unique_ptr<Importer> importer_;
};

}  // namespace dsec::image
