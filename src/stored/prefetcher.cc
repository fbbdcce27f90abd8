#include "stored/prefetcher.h"

#include <algorithm>

#include "base/log.h"
#include "stored/prefetch_verdict.h"

namespace dsec::stored {

namespace {

constexpr std::size_t kRun = 4;  // chunks: a reader that needs one of them waits for all
constexpr auto kPause = std::chrono::milliseconds(20);
constexpr auto kPatience = std::chrono::seconds(20);

}  // namespace

Prefetcher::Prefetcher(PrefetchLimits limits, Node node) : limits_(std::move(limits)), node_(std::move(node)), pressure_(limits_.pressure_folder) {
  for (std::size_t i = 0; i < limits_.threads; ++i) threads_.emplace_back([this] { work(); });
}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Prefetcher::begin(const std::shared_ptr<Blob>& blob) {
  const std::lock_guard lock(mutex_);
  const Watched& watched = watched_.emplace_back(blob, std::chrono::steady_clock::now());
  jobs_.emplace_back([this, watched] { load(watched); });
  wake_.notify_one();
}

void Prefetcher::look_around(Instant now) {
  const std::lock_guard lock(mutex_);
  std::erase_if(watched_, [&](const Watched& watched) {
    if (now - watched.begun < limits_.window) return false;
    jobs_.emplace_back([this, watched] { conclude(watched); });
    return true;
  });
  wake_.notify_all();
}

void Prefetcher::work() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (!jobs_.empty()) {
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      lock.lock();
    } else if (const std::optional<Step> step = next_step(std::chrono::steady_clock::now())) {
      lock.unlock();
      for (const ChunkRun& run : step->runs) node_.fetch(step->blob, run);
      node_.budget.release(step->reserved_bytes);
      lock.lock();
    } else if (plans_.empty()) {
      wake_.wait(lock);
    } else {
      wake_.wait_for(lock, kPause);  // for what nobody tells: pressure, demand, room
    }
  }
}

bool Prefetcher::may_begin(Instant now) { return !plans_.empty() && now >= next_at_ && !node_.demand_is_busy() && !pressure_.high(); }

std::optional<Prefetcher::Step> Prefetcher::next_step(Instant now) {
  if (!may_begin(now)) return std::nullopt;
  for (std::size_t left = plans_.size(); left > 0; --left) {
    Plan plan = std::move(plans_.front());
    plans_.pop_front();
    const std::shared_ptr<Blob> blob = plan.of.blob.lock();
    if (!blob || now - plan.of.begun >= limits_.window) continue;
    std::optional<Step> step = far_enough_ahead(*blob) ? std::nullopt : step_of(plan, blob, now);
    if (plan.next < plan.touches.size()) plans_.push_back(std::move(plan));
    if (step) return step;
  }
  return std::nullopt;
}

bool Prefetcher::far_enough_ahead(const Blob& blob) const {
  const BlobCounts counts = blob.counts();
  return counts.prefetched_bytes - std::min(counts.prefetched_bytes, counts.useful_bytes) >= std::max(limits_.lead_bytes, counts.prefetched_bytes / 2);
}

std::optional<Prefetcher::Step> Prefetcher::step_of(Plan& plan, const std::shared_ptr<Blob>& blob, Instant now) {
  while (plan.next < plan.touches.size()) {
    ChunkRun run{plan.touches[plan.next].chunk, 1};
    while (run.count < kRun && plan.next + run.count < plan.touches.size() && plan.touches[plan.next + run.count].chunk == run.first + run.count) ++run.count;
    const std::uint64_t bytes = run.count * origin::ChunkIndex::kChunkBytes;
    if (!node_.budget.reserve(bytes)) return std::nullopt;
    plan.next += run.count;
    Step step{.blob = blob, .runs = blob->claim(run), .reserved_bytes = bytes};
    if (!step.runs.empty()) {
      next_at_ = std::max(now, next_at_) + std::chrono::nanoseconds(bytes * std::nano::den / limits_.bytes_per_second);
      return step;
    }
    node_.budget.release(bytes);
  }
  return std::nullopt;
}

void Prefetcher::load(const Watched& watched) {
  const std::shared_ptr<Blob> blob = watched.blob.lock();
  if (!blob || prefetch_is_off(node_.state, blob->hex())) return;
  const auto bytes = origin::read_whole(node_.origin, {origin::ObjectKind::kTrace, blob->hex()}, origin::AccessTrace::kMaxBytes, Deadline::in(kPatience));
  if (!bytes.ok() && bytes.error().code() == ErrorCode::kNotFound) return;
  blob->keep_no_order();  // the store has one
  const auto trace = bytes.ok() ? origin::AccessTrace::parse(*bytes, blob->bytes()) : Result<origin::AccessTrace>(bytes.error());
  if (!trace.ok()) return log_warning("an access trace is not used", {{"data", blob->hex()}, {"why", trace.error().message()}});
  const std::lock_guard lock(mutex_);
  plans_.push_back({watched, trace->touches()});
  wake_.notify_all();
}

void Prefetcher::conclude(const Watched& watched) {
  const std::shared_ptr<Blob> blob = watched.blob.lock();
  if (!blob) return;
  if (const Result<void> saved = save_verdict(node_.state, blob->hex(), blob->counts()); !saved.ok())
    log_warning("how prefetching went is not noted", {{"data", blob->hex()}, {"why", saved.error().message()}});
  const auto trace = blob->take_trace(std::chrono::steady_clock::now());
  if (!trace || trace->touches().empty()) return;
  const auto published = node_.origin.publish({origin::ObjectKind::kTrace, blob->hex()}, origin::Content::of_bytes(trace->bytes()), Deadline::in(kPatience));
  if (published.ok()) return log_info("an access trace is in the store", {{"data", blob->hex()}, {"chunks", std::to_string(trace->touches().size())}});
  // Another node's came first, and stays.
  if (published.error().code() != ErrorCode::kConflict) log_warning("an access trace was not stored", {{"data", blob->hex()}, {"why", published.error().message()}});
}

}  // namespace dsec::stored
