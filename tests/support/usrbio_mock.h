// What usrbio_mock.cc, which stands in for 3FS's library, is told to do wrong.
// It exports one of these as `usrbio_mock`.
#pragma once

#include <atomic>
#include <cstdint>

struct UsrbioMock {
  std::atomic<bool> is_3fs{true};
  std::atomic<int> delay_us{0};
  std::atomic<bool> reorders{false};       // answers come in another order than requests
  std::atomic<int> full_every{0};          // each n-th request finds the ring full
  std::atomic<bool> short_reads{false};    // half of what was asked for
  std::atomic<bool> hangs{false};          // no answers until it is false again
  std::atomic<int> fails_with{0};          // errno of every read
  std::atomic<bool> refuses_files{false};  // no file can be registered
  std::atomic<bool> says_too_much{false};
  std::atomic<std::uint64_t> reads{0};
  std::atomic<int> registered{0};  // files, now
  std::atomic<std::uint64_t> flags{0};  // of the last ring
};
