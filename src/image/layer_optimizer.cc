#include "image/layer_optimizer.h"

#include <fcntl.h>

#include <algorithm>
#include <tuple>

#include "base/clock.h"
#include "erofs/writer.h"
#include "image/layer_view.h"
#include "origin/access_trace.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

constexpr std::uint32_t kBlocksOfAChunk = origin::ChunkIndex::kChunkBytes / erofs::kBlockBytes;
static_assert(origin::AccessTrace::kPageBytes == erofs::kBlockBytes);

struct TimedTouch {
  std::uint32_t device = 0;
  std::size_t position = 0;  // in its trace
  origin::Touch touch;
  auto order() const { return std::tuple(touch.at_ms, device, position); }
};

void add_runs(const TimedTouch& one, std::vector<erofs::TouchedRun>& out) {
  for (std::uint32_t page = 0; page < kBlocksOfAChunk;) {
    std::uint32_t end = page;
    while (end < kBlocksOfAChunk && (one.touch.pages >> end & 1) != 0) end++;
    if (end != page) out.push_back({one.device, {one.touch.chunk * kBlocksOfAChunk + page, end - page}});
    page = end + 1;
  }
}

// Objects that were read side by side are told apart by no clock that both share; each
// counts from its own first read.
Result<std::vector<erofs::TouchedRun>> touched_runs(const std::vector<erofs::DeviceSlot>& devices, const TracesByData& traces) {
  std::vector<TimedTouch> touches;
  for (std::uint32_t i = 0; i < devices.size(); i++) {
    const std::string hex(devices[i].tag, sizeof devices[i].tag);
    const auto found = traces.find(hex);
    if (found == traces.end()) continue;
    DSEC_ASSIGN(const origin::AccessTrace trace, origin::AccessTrace::parse(found->second, std::uint64_t{devices[i].blocks} * erofs::kBlockBytes).within("data " + hex));
    for (const origin::Touch& touch : trace.touches()) touches.push_back({i + 1, touches.size(), touch});
  }
  std::sort(touches.begin(), touches.end(), [](const TimedTouch& a, const TimedTouch& b) { return a.order() < b.order(); });
  std::vector<erofs::TouchedRun> runs;
  for (const TimedTouch& one : touches) add_runs(one, runs);
  return runs;
}

}  // namespace

Result<TracesByData> trace_of_only_data(const LayerStore& store, const std::string& digest, const std::string& trace) {
  DSEC_ASSIGN(const std::vector<LayerStore::Data> data, store.data(digest));
  if (data.size() != 1) return invalid_argument("the layer has " + std::to_string(data.size()) + " data objects, and the trace does not say of which it is");
  const Result<origin::AccessTrace> parsed = origin::AccessTrace::parse(trace, data[0].device.bytes());
  if (!parsed.ok()) return invalid_argument(parsed.error().message());
  return TracesByData{{data[0].device.digest, trace}};
}

Result<OptimizedFiles> optimize_layer(const LayerStore& store, const std::string& digest, const TracesByData& traces, const std::string& directory, const erofs::HotLayoutOptions& options) {
  OptimizedFiles out;
  DSEC_ASSIGN(out.record, store.find(digest));
  DSEC_ASSIGN(erofs::Reader layer, open_reader(store, digest));
  DSEC_ASSIGN(const std::vector<erofs::TouchedRun> touched, touched_runs(layer.devices(), traces));
  constexpr int kNewFile = O_RDWR | O_CREAT | O_EXCL;
  DSEC_ASSIGN(const sys::Fd metadata, sys::open_at(AT_FDCWD, directory + "/layer.meta", kNewFile, 0600));
  DSEC_ASSIGN(const sys::Fd data, sys::open_at(AT_FDCWD, directory + "/layer.data", kNewFile, 0600));
  erofs::Writer writer(metadata.get(), data.get(), {});
  DSEC_ASSIGN(out.counts, erofs::lay_out_by_touch(layer, touched, options, writer));
  // Kind, configuration and provenance are in the digest that is named here.
  DSEC_TRY(writer.finish({.identity = "laid out by touch, from " + digest}));
  model::LayerRecord& record = out.record;
  record.digest.clear();
  record.size_bytes = 0;
  record.parts.clear();
  record.diff_id.clear();
  record.source = "optimized from " + digest;
  record.created_at_ms = std::chrono::duration_cast<std::chrono::milliseconds>(SystemClock().wall_now().time_since_epoch()).count();
  return out;
}

}  // namespace dsec::image
