#include "origin/store_file.h"

#include <fcntl.h>
#include <sys/sysmacros.h>

#include <algorithm>

#include "base/log.h"
#include "sys/file.h"

namespace dsec::origin {

namespace {

constexpr std::string_view kType = "fuse.hf3fs";
constexpr std::size_t kMaxMounts = 16 << 20;

// The word at `index` of a line, words being apart by one space; "" behind the last.
std::string_view word_of(std::string_view line, std::size_t index) {
  for (; index > 0; --index) {
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) return {};
    line.remove_prefix(space + 1);
  }
  return line.substr(0, line.find(' '));
}

}  // namespace

std::string file_system_type(std::string_view mountinfo, dev_t device) {
  constexpr std::size_t kDevice = 2;
  const std::string wanted = std::to_string(major(device)) + ":" + std::to_string(minor(device));
  while (!mountinfo.empty()) {
    const std::string_view line = mountinfo.substr(0, mountinfo.find('\n'));
    mountinfo.remove_prefix(std::min(mountinfo.size(), line.size() + 1));
    const std::size_t mark = line.find(" - ");
    if (mark != std::string_view::npos && word_of(line, kDevice) == wanted) return std::string(word_of(line.substr(mark + 3), 0));
  }
  return {};
}

Result<std::shared_ptr<UsrbioRing>> ring_for(const std::string& directory, dev_t device, const std::string& library, const std::string& mountinfo) {
  const Result<std::string> mounts = sys::read_file(mountinfo, kMaxMounts);
  if (!mounts.ok() || file_system_type(*mounts, device) != kType) return std::shared_ptr<UsrbioRing>();
  DSEC_ASSIGN(std::shared_ptr<const UsrbioLibrary> loaded, UsrbioLibrary::load(library));
  const sys::Fd folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || !loaded->is_hf3fs(folder.get())) return Error(ErrorCode::kUnavailable, "USRBIO: its library does not know " + directory);
  DSEC_ASSIGN(std::unique_ptr<UsrbioRing> ring, UsrbioRing::create(std::move(loaded), directory, {}));
  return std::shared_ptr<UsrbioRing>(std::move(ring));
}

Result<std::shared_ptr<StoreFile>> StoreFile::open(const std::string& path, std::weak_ptr<ExpendableThreads> threads, std::shared_ptr<UsrbioRing> ring) {
  DSEC_ASSIGN(std::shared_ptr<OpenFile> file, OpenFile::open(path, std::move(threads)));
  if (ring) {
    if (const Result<void> added = ring->add(file->fd()); !added.ok()) {
      log_warning("a file is read without USRBIO", {{"file", path}, {"why", added.error().message()}});
      ring = nullptr;
    }
  }
  return std::shared_ptr<StoreFile>(new StoreFile(std::move(file), std::move(ring)));
}

StoreFile::~StoreFile() {
  if (ring_) ring_->forget(file_->fd());
}

Result<Buffer> StoreFile::read(ExpendableThreads& threads, std::uint64_t offset, std::size_t length, Deadline deadline) const {
  if (ring_) return ring_->read(file_->fd(), offset, length, deadline);
  return threads.call<Buffer>([file = file_, offset, length] { return file->read(offset, length); }, deadline);
}

}  // namespace dsec::origin
