// What builds make without running anything: parts with copied files, and images of parts.
#include <algorithm>

#include "base/fail_point.h"
#include "image/importer.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

std::int64_t now_ms() { return std::chrono::duration_cast<std::chrono::milliseconds>(SystemClock().wall_now().time_since_epoch()).count(); }

// The files of several layers, as a worker gets them.
class PassedLayers {
 public:
  Result<void> add(const LayerStore& store, const std::string& digest) {
    DSEC_ASSIGN(LayerStore::OpenFiles files, store.open_files(digest));
    descriptors.push_back(files.metadata.get());
    for (const sys::Fd& data : files.data) descriptors.push_back(data.get());
    data_files.push_back(files.data.size());
    files_.push_back(std::move(files));
    return {};
  }
  std::vector<int> descriptors;
  std::vector<std::uint64_t> data_files;

 private:
  std::vector<LayerStore::OpenFiles> files_;
};

std::function<void(const WorkerProgress&)> relay(const ImportOptions& options) {
  if (!options.on_progress) return {};
  return [&options](const WorkerProgress& progress) { options.on_progress({.stage = progress.stage, .done_bytes = progress.done_bytes}); };
}

}  // namespace

Result<model::LayerRecord> Importer::merge(const MergeOptions& options) {
  const ImportOptions& how = options.layer;
  ImportRequest request{.mode = ImportMode::kMerge, .kind = how.kind, .max_bytes = how.max_bytes, .max_entries = how.max_entries, .profile = how.profile};
  request.architecture = how.architecture;
  request.config = options.config;
  request.diff_id = how.part_id.empty() ? "built in " + options.project : how.part_id;
  PassedLayers passed;
  std::vector<std::string> distinct;
  for (const std::string& digest : options.layers) {
    auto known = std::find(distinct.begin(), distinct.end(), digest);
    if (known == distinct.end()) {
      DSEC_TRY(passed.add(store_, digest));
      known = distinct.insert(distinct.end(), digest);
    }
    request.stack.push_back(static_cast<std::uint64_t>(known - distinct.begin()));
  }
  request.data_files = passed.data_files;
  return jobs_.with_job([&](int, const std::string& directory) -> Result<model::LayerRecord> {
    DSEC_ASSIGN(const ImportResult done, run_confined({.helper = options_.helper,
                                                       .job_directory = directory,
                                                       .first_id = options_.unprivileged_uid,
                                                       .request = request,
                                                       .passed = passed.descriptors,
                                                       .deadline = Deadline::in(how.time_limit),
                                                       .on_progress = relay(how),
                                                       .cancelled = how.cancelled}));
    DSEC_TRY(fail_point("image.build.publish"));
    model::LayerRecord record{.digest = "", .kind = how.kind, .content_bytes = done.counts.content_bytes, .entries = done.counts.entries};
    record.profile = to_string(how.profile);
    record.architecture = how.architecture;
    record.source = how.source_label;
    record.created_at_ms = now_ms();
    record.config = options.config;
    record.build = options.build;
    record.parts = options.parts;
    record.diff_id = how.part_id;
    return store_.publish({directory + "/layer.meta", directory + "/layer.data"}, std::move(record), how.part_holds).within("publish the image");
  });
}

Result<CopiedPart> Importer::copy(const CopyOptions& options) {
  const ImportOptions& how = options.layer;
  ImportRequest request{.mode = ImportMode::kCopy, .max_bytes = how.max_bytes, .max_entries = how.max_entries, .profile = how.profile, .diff_id = options.identity};
  PassedLayers passed;
  for (const std::string& digest : options.below) {
    request.stack.push_back(request.stack.size());
    DSEC_TRY(passed.add(store_, digest));
  }
  if (!options.source.empty()) DSEC_TRY(passed.add(store_, options.source));
  request.data_files = passed.data_files;
  return jobs_.with_job([&](int, const std::string& directory) -> Result<CopiedPart> {
    DSEC_TRY(sys::replace_file(directory + "/copy", encode(options.spec), 0644));
    DSEC_ASSIGN(const ImportResult done, run_confined({.helper = options_.helper,
                                                       .job_directory = directory,
                                                       .first_id = options_.unprivileged_uid,
                                                       .request = request,
                                                       .passed = passed.descriptors,
                                                       .deadline = Deadline::in(how.time_limit),
                                                       .on_progress = relay(how),
                                                       .cancelled = how.cancelled}));
    const auto digest = done.facts.find("digest");
    if (digest == done.facts.end() || digest->second.size() != 64) return Error(ErrorCode::kInternal, "the worker told no digest of what it copied");
    CopiedPart out;
    out.digest = digest->second;
    out.part_id = options.name(out.digest);
    if (done.facts.contains("empty")) return out;
    if (options.reuse) {
      out.record = store_.find_build_part(out.part_id, *how.part_holds);
      out.reused = out.record.has_value();
      if (out.reused) return out;
    }
    DSEC_TRY(fail_point("image.build.part"));
    model::LayerRecord record{.digest = "", .kind = model::LayerKind::kBase, .content_bytes = done.counts.content_bytes, .entries = done.counts.entries};
    record.profile = to_string(how.profile);
    record.created_at_ms = now_ms();
    record.diff_id = out.part_id;
    DSEC_ASSIGN(model::LayerRecord published, store_.publish({directory + "/layer.meta", directory + "/layer.data"}, std::move(record), how.part_holds).within("publish what was copied"));
    out.record = std::move(published);
    return out;
  });
}

}  // namespace dsec::image
