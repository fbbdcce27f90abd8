// Runs blocking work on a WorkerPool and resumes the coroutine on the event loop.
#pragma once

#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "base/result.h"
#include "sys/worker_pool.h"

namespace dsec::net {

// `work` runs on the pool and returns a Result<T>. A full pool answers kExhausted.
// What `work` captures must outlive the call, whether or not the caller still waits.
template <typename Work>
boost::asio::awaitable<std::invoke_result_t<Work>> on_pool(sys::WorkerPool& pool, Work work) {
  using Outcome = std::invoke_result_t<Work>;
  auto executor = co_await boost::asio::this_coro::executor;
  co_return co_await boost::asio::async_initiate<const boost::asio::use_awaitable_t<>&, void(Outcome)>(
      [&pool, executor, work = std::move(work)](auto handler) mutable {
        auto shared = std::make_shared<std::decay_t<decltype(handler)>>(std::move(handler));
        auto job = std::make_shared<Work>(std::move(work));
        Result<void> queued = pool.submit([shared, job, executor] {
          boost::asio::post(executor, [shared, outcome = (*job)()]() mutable { (*shared)(std::move(outcome)); });
        });
        if (!queued.ok())
          boost::asio::post(executor, [shared, error = std::move(queued).error()]() mutable { (*shared)(Outcome(std::move(error))); });
      },
      boost::asio::use_awaitable);
}

}  // namespace dsec::net
