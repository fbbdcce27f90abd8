#include "image/pack_worker.h"

#include <unistd.h>

#include "erofs/directory_input.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

constexpr std::size_t kResidueLimit = 64 << 20;

// Kind and content do not tell one pack from another: what lay below decides what it
// means, and whose it is decides who may know that it exists.
std::string identity_of(const ImportRequest& request) {
  return encode(ImportRequest{.mode = ImportMode::kUpper, .kind = request.kind, .diff_id = request.diff_id, .upper = {.parents = request.upper.parents, .project = request.upper.project}});
}

}  // namespace

Result<OpenUpper> open_upper(const ImportRequest& request) {
  OpenUpper out;
  DSEC_ASSIGN(out.layer, LayerFilesInWork::begin({.overlaps = erofs::Overlaps::kRefuse, .profile = request.profile}));
  DSEC_ASSIGN(const std::string text, sys::read_file("/work/residue", kResidueLimit));
  DSEC_ASSIGN(out.rules, decode_residue_rules(text));
  return out;
}

Result<ImportResult> import_upper(const ImportRequest& request, OpenUpper& open, const StepProgress& progress) {
  const UpperRequest& upper = request.upper;
  ResidueScan scan(std::move(open.rules), upper.allow);
  progress("read", 0);
  const Result<erofs::DirectoryInputCounts> read =
      erofs::add_directory(*open.layer.writer, STDIN_FILENO,
                           {.form = erofs::DirectoryInputOptions::Form::kOverlayUpper,
                            .ids = {{upper.first_id, 0, upper.ids}},
                            .exclude = upper.remove,
                            .max_bytes = request.max_bytes,
                            .max_entries = request.max_entries,
                            .watch = &scan,
                            .on_progress = [&](std::uint64_t bytes) { progress("read", bytes); }});
  if (!read.ok()) return read.error();
  progress("build", read->content_bytes);
  DSEC_TRY(open.layer.finish(0, identity_of(request)));
  ImportResult result;
  result.counts.content_bytes = read->content_bytes;
  result.counts.entries = read->entries;
  result.counts.attributes_dropped = read->attributes_dropped;
  result.counts.removed = read->excluded;
  result.residue = scan.findings();
  return result;
}

}  // namespace dsec::image
