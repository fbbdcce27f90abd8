// A tar to an image by the importer's own path, timed: erofs_writer TAR OUTPUT plain|lz4.
// Prints milliseconds to the end of fsync, and the image's bytes.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>

#include "erofs/writer.h"
#include "image/tar_unpacker.h"
#include "sys/file.h"

namespace {

using namespace dsec;

Result<erofs::WrittenImage> convert(const std::string& tar, const std::string& output, erofs::Profile profile) {
  DSEC_ASSIGN(const sys::Fd input, sys::open_at(AT_FDCWD, tar, O_RDONLY));
  DSEC_ASSIGN(const sys::Fd metadata, sys::open_at(AT_FDCWD, output + ".meta", O_RDWR | O_CREAT | O_TRUNC, 0600));
  DSEC_ASSIGN(const sys::Fd data, sys::open_at(AT_FDCWD, output + ".data", O_RDWR | O_CREAT | O_TRUNC, 0600));
  erofs::Writer writer(metadata.get(), data.get(), {.profile = profile});
  image::TarUnpacker unpacker(writer, "", {.max_bytes = 1ULL << 40, .max_entries = 10'000'000}, [](std::uint64_t) {});
  DSEC_TRY(unpacker.unpack(input.get()));
  DSEC_ASSIGN(erofs::WrittenImage written, writer.finish({.unstated_seconds = unpacker.newest_seconds()}));
  if (::fsync(metadata.get()) != 0 || ::fsync(data.get()) != 0) return errno_error("sync", errno);
  return written;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: erofs_writer TAR OUTPUT plain|lz4\n");
    return 2;
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto written = convert(argv[1], argv[2], std::string_view(argv[3]) == "lz4" ? erofs::Profile::kLz4 : erofs::Profile::kPlain);
  if (!written.ok()) {
    std::fprintf(stderr, "%s\n", written.error().message().c_str());
    return 1;
  }
  const double milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%.3f %llu\n", milliseconds, static_cast<unsigned long long>(written->metadata_bytes + written->data_bytes));
  return 0;
}
