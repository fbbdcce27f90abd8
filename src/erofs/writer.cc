#include "erofs/writer.h"

#include <sys/stat.h>

#include "erofs/attributes.h"
#include "erofs/layout.h"
#include "erofs/metadata.h"

namespace dsec::erofs {

namespace {

Result<void> check(const EntryMeta& meta, const std::string& path) {
  if (meta.mtime_seconds < 0 || meta.mtime_nanoseconds < 0 || meta.mtime_nanoseconds > 999'999'999) return invalid_argument(path + ": a time that no image holds");
  if (meta.attributes.empty()) return {};
  return check_attributes(meta.attributes).within(path);
}

}  // namespace

Writer::Writer(int metadata_fd, int data_fd, WriterOptions options)
    : metadata_fd_(metadata_fd),
      overlaps_(options.overlaps),
      tree_(options.overlaps),
      contents_(data_fd, {.profile = options.profile, .lz4_level = options.lz4_level, .keep_digests = options.keep_digests, .parents = std::move(options.parents)}) {
}

Result<void> Writer::make_directory(const std::string& path, const EntryMeta& meta) {
  DSEC_TRY(check(meta, path));
  return tree_.make_directory(path, meta);
}

Result<void> Writer::begin_file(const std::string& path, const EntryMeta& meta, const FileShape& shape) {
  DSEC_CHECK(file_ == kNone);
  DSEC_TRY(check(meta, path));
  DSEC_ASSIGN(file_, tree_.make(path, static_cast<std::uint16_t>(S_IFREG | (meta.mode & 07777)), meta));
  contents_.begin(shape, room_beside(meta.attributes));
  tree_.node(file_).size = shape.bytes;
  return {};
}

Result<void> Writer::finish_file() {
  DSEC_CHECK(file_ != kNone);
  DSEC_ASSIGN(tree_.node(file_).body, contents_.finish());
  file_ = kNone;
  return {};
}

Result<void> Writer::make_symlink(const std::string& path, const std::string& target, const EntryMeta& meta) {
  if (target.empty()) return invalid_argument(path + ": a symbolic link without a target");
  if (target.size() > Tree::kLongestLink || target.find('\0') != std::string::npos) return invalid_argument(path + ": a symbolic link's target is too long");
  EntryMeta plain = meta;
  plain.attributes.clear();  // user.* is for files and directories alone
  DSEC_TRY(check(plain, path));
  DSEC_ASSIGN(const std::uint32_t made, tree_.make(path, S_IFLNK | 0777, plain));
  tree_.set_link_text(made, target);
  return {};
}

Result<void> Writer::make_fifo(const std::string& path, const EntryMeta& meta) {
  EntryMeta plain = meta;
  plain.attributes.clear();
  DSEC_TRY(check(plain, path));
  Result<std::uint32_t> made = tree_.make(path, static_cast<std::uint16_t>(S_IFIFO | (meta.mode & 07777)), plain);
  if (!made.ok()) return std::move(made).error();
  return {};
}

Result<void> Writer::make_whiteout(const std::string& path) {
  Result<std::uint32_t> made = tree_.make(path, S_IFCHR, {.mode = 0});
  if (!made.ok()) return std::move(made).error();
  return {};
}

Result<void> Writer::make_opaque(const std::string& path) { return tree_.make_opaque(path); }

Result<WrittenImage> Writer::finish(const FinishOptions& options) {
  DSEC_CHECK(file_ == kNone);
  if (overlaps_ == Overlaps::kLayer) tree_.mark_unstated();
  ImageLayout layout(tree_, contents_);
  DSEC_TRY(contents_.close(layout.used_contents()));
  const DeviceList devices = list_devices(contents_, layout.used_contents());
  if (devices.devices.size() > kMaximalDevices) return Error(ErrorCode::kTooLarge, "the image has more than 16 data files");
  DSEC_TRY(layout.place(front_bytes(devices.devices.size()), options.unstated_seconds));
  DSEC_ASSIGN(const std::uint64_t metadata_bytes, write_metadata({tree_, contents_, layout, devices, options.identity}, metadata_fd_));
  return WrittenImage{metadata_bytes, contents_.data().bytes(), contents_.data().digest(), layout.inodes().size()};
}

ParentData Writer::as_parent() const {
  return {contents_.data().digest(), static_cast<std::uint32_t>(contents_.data().bytes() / kBlockBytes), contents_.stored_files()};
}

}  // namespace dsec::erofs
