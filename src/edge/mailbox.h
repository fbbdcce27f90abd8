// Mailbox: one lifecycle operation of a sandbox at a time, in the order of arrival.
#pragma once

#include "edge/notifier.h"

namespace dsec::edge {

class Mailbox {
 public:
  // Held for the length of one operation. The mailbox outlives it.
  class Turn {
   public:
    explicit Turn(Mailbox& owner) : owner_(&owner) {}
    Turn(Turn&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn() {
      if (owner_ == nullptr) return;
      ++owner_->serving_;
      owner_->changed_.notify();
    }

   private:
    Mailbox* owner_;
  };

  // Every operation has deadlines inside, so the wait ends.
  asio::awaitable<Turn> enter() {
    const std::uint64_t ticket = next_++;
    while (ticket != serving_) co_await changed_.wait(kNoInstant);
    co_return Turn(*this);
  }

 private:
  std::uint64_t next_ = 0;
  std::uint64_t serving_ = 0;
  Notifier changed_;
};

}  // namespace dsec::edge
