#include "image/oci_worker.h"

#include <archive.h>
#include <archive_entry.h>
#include <unistd.h>

#include <memory>

#include "erofs/layer_merge.h"
#include "image/confined_worker.h"
#include "image/oci_archive.h"
#include "image/passed_images.h"
#include "image/tar_unpacker.h"
#include "image/worker_layer.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

struct FreeReader {
  void operator()(archive* reader) const { archive_read_free(reader); }
};

}  // namespace

Result<ImportResult> receive_archive(const ImportRequest& request, const StepProgress& progress) {
  const UnpackLimits limits{request.max_bytes, request.max_entries};
  DSEC_ASSIGN(const OciArchive archive, OciArchive::receive(STDIN_FILENO, "/work/archive", limits, request.architecture, [&](std::uint64_t bytes) { progress("receive", bytes); }));
  ImportResult result;
  result.config = archive.config();
  result.architecture = archive.architecture();
  result.layers = archive.layers();
  return result;
}

Result<ImportResult> decompress_layer(const ImportRequest&) {
  const std::unique_ptr<archive, FreeReader> reader(archive_read_new());
  if (!reader) return Error(ErrorCode::kInternal, "cannot make an archive reader");
  archive_read_support_format_raw(reader.get());
  archive_read_support_filter_gzip(reader.get());
  archive_read_support_filter_zstd(reader.get());
  archive_read_support_filter_xz(reader.get());
  archive_entry* entry = nullptr;
  if (archive_read_open_fd(reader.get(), STDIN_FILENO, 1 << 18) != ARCHIVE_OK || archive_read_next_header(reader.get(), &entry) != ARCHIVE_OK) {
    return invalid_argument("it cannot be read");
  }
  if (archive_filter_count(reader.get()) > 2) return invalid_argument("it is compressed more than once");
  for (;;) {
    const void* data = nullptr;
    std::size_t length = 0;
    la_int64_t offset = 0;
    const int status = archive_read_data_block(reader.get(), &data, &length, &offset);
    if (status == ARCHIVE_EOF) return ImportResult{};
    if (status < ARCHIVE_WARN) return invalid_argument("it cannot be decompressed");
    DSEC_TRY(sys::write_all(kFirstPassed, std::string_view(static_cast<const char*>(data), length)));
  }
}

Result<ImportResult> convert_layer(const ImportRequest& request, const StepProgress& progress) {
  DSEC_ASSIGN(LayerFilesInWork layer, LayerFilesInWork::begin({.overlaps = erofs::Overlaps::kLayer, .profile = request.profile}));
  TarUnpacker unpacker(*layer.writer, "", {request.max_bytes, request.max_entries}, [&](std::uint64_t bytes) { progress("unpack", bytes); });
  DSEC_TRY(unpacker.unpack_layer(STDIN_FILENO));
  ImportResult result;
  result.counts = unpacker.counts();
  result.counts.entries += layer.writer->implied_directories();
  progress("build", result.counts.content_bytes);
  DSEC_TRY(layer.finish(unpacker.newest_seconds(), "layer of an image " + request.diff_id));
  return result;
}

Result<ImportResult> merge_parts(const ImportRequest& request, const StepProgress& progress) {
  progress("build", 0);
  DSEC_ASSIGN(std::vector<erofs::Reader> parts, open_passed_images(request.data_files));
  std::vector<erofs::Reader*> stack;
  for (const std::uint64_t part : request.stack) {
    if (part >= parts.size()) return Error(ErrorCode::kInternal, "a layer without its part");
    stack.push_back(&parts[part]);
  }
  DSEC_ASSIGN(LayerFilesInWork layer, LayerFilesInWork::begin({.overlaps = erofs::Overlaps::kReplace, .profile = request.profile, .parents = erofs::data_of(stack)}));
  DSEC_ASSIGN(const erofs::MergeCounts counts, erofs::merge_layers(stack, {.at = request.at}, *layer.writer));
  if (request.kind == model::LayerKind::kBase) DSEC_TRY(add_mount_points(*layer.writer));
  ImportResult result;
  result.config = request.config;
  result.architecture = request.architecture;
  DSEC_ASSIGN(const erofs::WrittenImage written, layer.finish(counts.newest_seconds, image_identity(request.kind, result, request.diff_id)));
  result.counts.content_bytes = counts.content_bytes;
  result.counts.entries = written.inodes;
  return result;
}

}  // namespace dsec::image
