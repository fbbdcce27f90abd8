#include "image/pack_worker.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "erofs/directory_input.h"
#include "image/confined_worker.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

constexpr std::size_t kResidueLimit = 64 << 20;
constexpr std::size_t kHeldBytes = 16 << 20;  // a sandbox stands while it is read, and what fits is hashed and written afterwards

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
  // With its pages: each that would be touched first while the sandbox stands would lengthen that.
  void* const hold = ::mmap(nullptr, kHeldBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (hold == MAP_FAILED) return errno_error("make room for what is read", errno);
  // What is read has to stand: that begins now, and not while this process started.
  progress("ready", 0);
  char go = 0;
  if (::read(kFirstPassed, &go, 1) != 1) return Error(ErrorCode::kCancelled, "the pack was given up");
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
                            .on_progress = [&](std::uint64_t bytes) { progress("read", bytes); },
                            .hold = {static_cast<char*>(hold), kHeldBytes},
                            .on_read = [&](std::uint64_t bytes) { progress("build", bytes); }});
  if (!read.ok()) return read.error();
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
