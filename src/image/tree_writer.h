// TreeWriter puts the files of a foreign archive below one directory and nowhere
// else: an image archive's blobs, which are read back and thrown away.
//
// Every name is resolved from the root's descriptor by openat2, beneath it and
// through no link. Owners, times and attributes are not kept. Names are clean: see
// clean_path(). Runs in the confined worker.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "erofs/entry.h"
#include "sys/fd.h"

namespace dsec::image {

class TreeWriter final : public erofs::EntrySink {
 public:
  explicit TreeWriter(sys::Fd root) : root_(std::move(root)) {}

  Result<void> make_directory(const std::string& path, const erofs::EntryMeta& meta) override;
  Result<void> begin_file(const std::string& path, const erofs::EntryMeta& meta, const erofs::FileShape& shape) override;
  Result<void> write(std::string_view bytes) override;
  Result<void> skip(std::uint64_t bytes) override;
  Result<void> finish_file() override;
  Result<void> make_symlink(const std::string& path, const std::string& target, const erofs::EntryMeta& meta) override;
  Result<void> make_hard_link(const std::string& path, const std::string& target) override;
  Result<void> make_fifo(const std::string& path, const erofs::EntryMeta& meta) override;
  Result<void> make_whiteout(const std::string& path) override;
  Result<void> make_opaque(const std::string& path) override;
  std::uint64_t implied_directories() const override { return implied_directories_; }

 private:
  Result<sys::Fd> open_directory(const std::string& path);
  // The parent of `path`, made if missing; `name` is the last component.
  // The descriptor is valid until the next call.
  Result<int> open_parent(const std::string& path, std::string& name);
  Result<void> ensure_directory(const std::string& path);
  // Makes room for an entry that is no directory.
  Result<void> clear(int parent, const std::string& name, const std::string& path);

  sys::Fd root_;
  std::string cached_parent_;
  sys::Fd cached_fd_;         // stays open while a caller uses it
  bool cache_holds_ = false;  // cached_fd_ is still what cached_parent_ leads to
  std::uint64_t implied_directories_ = 0;
  sys::Fd file_;              // that is being written
  std::uint64_t position_ = 0;
};

}  // namespace dsec::image
