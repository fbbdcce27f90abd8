// A hostile archive against the unpacker: whatever it holds, the limits hold, an
// image comes out that its own front describes, and where files are made nothing
// appears beside the tree.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "erofs/device_table.h"
#include "erofs/digest.h"
#include "erofs/writer.h"
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

void check(const TarUnpacker& unpacker) { require(unpacker.counts().content_bytes <= kMaxBytes && unpacker.counts().entries <= kMaxEntries); }

// As for an image archive: real files.
void unpack_to_files(const std::string& directory, int input) {
  const std::string tree_path = directory + "/tree";
  std::filesystem::create_directory(tree_path);
  TreeWriter tree(sys::open_at(AT_FDCWD, tree_path, O_RDONLY | O_DIRECTORY).value());
  TarUnpacker unpacker(tree, "", {kMaxBytes, kMaxEntries}, [](std::uint64_t) {});
  if (unpacker.unpack(input).ok()) check(unpacker);

  std::size_t beside = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    require(entry.path().filename() == "tree");
    beside++;
  }
  require(beside == 1);
  const sys::Fd parent = sys::open_at(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY).value();
  require(sys::remove_tree_at(parent.get(), "tree").ok());
}

void unpack_to_image(int input, erofs::WriterOptions options) {
  const sys::Fd metadata(::memfd_create("metadata", MFD_CLOEXEC));
  const sys::Fd data(::memfd_create("data", MFD_CLOEXEC));
  const bool layers = options.overlaps == erofs::Overlaps::kLayer;
  erofs::Writer writer(metadata.get(), data.get(), std::move(options));
  TarUnpacker unpacker(writer, "", {kMaxBytes, kMaxEntries}, [](std::uint64_t) {});
  if (!(layers ? unpacker.unpack_layer(input) : unpacker.unpack(input)).ok()) return;
  check(unpacker);
  const Result<erofs::WrittenImage> written = writer.finish({});
  require(written.ok() && written->metadata_bytes % 4096 == 0);
  const auto devices = erofs::read_device_table(metadata.get());
  require(devices.ok() && devices->size() == (written->data_bytes == 0 ? 0 : 1));
  if (devices->empty()) return;
  require((*devices)[0].bytes() == written->data_bytes && "sha256:" + (*devices)[0].digest == erofs::digest_of_file(data.get()).value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Playground playground;
  const sys::Fd input(::memfd_create("archive", MFD_CLOEXEC));
  require(sys::write_all(input.get(), std::string_view(reinterpret_cast<const char*>(data), size)).ok());
  const auto again = [&] {
    require(::lseek(input.get(), 0, SEEK_SET) == 0);
    return input.get();
  };
  unpack_to_files(playground.path(), again());
  unpack_to_image(again(), {.overlaps = erofs::Overlaps::kRefuse});
  unpack_to_image(again(), {.overlaps = erofs::Overlaps::kLayer, .profile = erofs::Profile::kLz4});
  return 0;
}
