// A hostile archive against the unpacker: whatever it holds, nothing appears
// beside the tree, and the limits hold.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "image/tar_unpacker.h"
#include "image/tree_writer.h"
#include "sys/file.h"

namespace {

using namespace dsec;
using namespace dsec::image;

constexpr std::uint64_t kMaxBytes = 1 << 20;
constexpr std::uint64_t kMaxEntries = 200;

void require(bool holds) {
  if (!holds) __builtin_trap();
}

// Held for the process's life: a directory in memory with the tree in it.
class Playground {
 public:
  Playground() {
    char name[] = "/dev/shm/dsec-tar-fuzz-XXXXXX";
    require(::mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~Playground() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void unpack(const std::string& directory, int input, Overlaps overlaps) {
  const std::string tree_path = directory + "/tree";
  std::filesystem::create_directory(tree_path);
  TreeWriter tree(sys::open_at(AT_FDCWD, tree_path, O_RDONLY | O_DIRECTORY).value(), overlaps);
  TarUnpacker unpacker(tree, "", {kMaxBytes, kMaxEntries}, [](std::uint64_t) {});
  const bool done = (overlaps == Overlaps::kRefuse ? unpacker.unpack(input) : unpacker.unpack_layer(input)).ok() && tree.finish(0).ok();
  if (done) require(unpacker.counts().content_bytes <= kMaxBytes && unpacker.counts().entries <= kMaxEntries);

  std::size_t beside = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    require(entry.path().filename() == "tree");
    beside++;
  }
  require(beside == 1);
  const sys::Fd parent = sys::open_at(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY).value();
  require(sys::remove_tree_at(parent.get(), "tree").ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Playground playground;
  const sys::Fd input(::memfd_create("archive", MFD_CLOEXEC));
  require(sys::write_all(input.get(), std::string_view(reinterpret_cast<const char*>(data), size)).ok());
  for (const Overlaps overlaps : {Overlaps::kRefuse, Overlaps::kReplace}) {
    require(::lseek(input.get(), 0, SEEK_SET) == 0);
    unpack(playground.path(), input.get(), overlaps);
  }
  return 0;
}
