// What a sandbox that runs holds of the node's memory, and how it gives some back.
#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "edge/live_sandbox.h"
#include "net/blocking.h"

namespace dsec::edge {

namespace {

constexpr auto kTrimTime = std::chrono::seconds(10);

}  // namespace

BrakeSandbox LiveSandbox::for_brake() const {
  return {.id = id(),
          .batch = sandbox_.spec.priority == model::Priority::kBatch,
          .busy = busy(),
          .trimmed = trimmed(),
          .unused_for = unused_for(context_.clock.now()),
          .started_ms = sandbox_.started_at_ms,
          .bytes = memory_.latest().working_bytes,
          .grown_bytes = memory_.grown_bytes()};
}

void LiveSandbox::begin_trim(const std::string& why) {
  if (!running() || instance_ == nullptr) return;
  trimmed_at_ = context_.clock.now();
  stop_reclaim();
  reclaim_cancelled_ = std::make_shared<std::atomic<bool>>(false);
  asio::co_spawn(context_.io, trim(why, reclaim_cancelled_), asio::detached);
}

asio::awaitable<void> LiveSandbox::trim(std::string why, std::shared_ptr<std::atomic<bool>> cancelled) {
  const std::shared_ptr<LiveSandbox> self = shared_from_this();
  const Result<backend::Reclaimed> done =
      co_await net::on_pool(context_.reclaims, [instance = instance_, cancelled]() -> Result<backend::Reclaimed> {
        if (cancelled->load()) return Error(ErrorCode::kCancelled, "it is used again");
        return instance->reclaim(*cancelled, Deadline::in(kTrimTime));
      });
  if (reclaim_cancelled_ == cancelled) reclaim_cancelled_.reset();
  if (over()) co_return;
  if (!done.ok()) {
    if (done.error().code() != ErrorCode::kCancelled) note_event("not_trimmed", done.error().message());
    co_return;
  }
  const std::uint64_t freed = done->before_bytes - std::min(done->before_bytes, done->after_bytes);
  note_event("trimmed", fmt::format("{} of {} KiB given back, {} KiB in swap; {}", freed >> 10, done->before_bytes >> 10, done->swapped_bytes >> 10, why));
}

}  // namespace dsec::edge
