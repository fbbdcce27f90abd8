#include "stored/cache_budget.h"

namespace dsec::stored {

void CacheBudget::added(const std::shared_ptr<Blob>& blob, std::uint64_t chunk, FetchFor whom) {
  const std::uint64_t bytes = blob->chunk_bytes(chunk);
  const std::lock_guard lock(mutex_);
  (whom == FetchFor::kLater ? unread_ : row_).push_back({blob, blob.get(), chunk, bytes});
  used_bytes_ += bytes;
  evict_unread();
  evict_too_much();
}

bool CacheBudget::reserve(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (used_bytes_ + reserved_bytes_ + bytes > limit_bytes_) return false;
  reserved_bytes_ += bytes;
  return true;
}

void CacheBudget::release(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  reserved_bytes_ -= bytes;
}

void CacheBudget::forget(const Blob* blob) {
  const std::lock_guard lock(mutex_);
  for (std::deque<Entry>* const row : {&row_, &unread_})
    std::erase_if(*row, [&](const Entry& entry) {
      if (entry.address != blob) return false;
      used_bytes_ -= entry.bytes;
      return true;
    });
}

void CacheBudget::evict_unread() {
  for (std::size_t left = unread_.size(); used_bytes_ > limit_bytes_ && left > 0; --left) {
    Entry entry = std::move(unread_.front());
    unread_.pop_front();
    const std::shared_ptr<Blob> blob = entry.blob.lock();
    if (blob && (!blob->unread(entry.chunk) || !blob->evict(entry.chunk))) row_.push_back(std::move(entry));
    else gone(entry, blob != nullptr);
  }
}

void CacheBudget::gone(const Entry& entry, bool evicted) {
  used_bytes_ -= entry.bytes;
  if (evicted) evicted_bytes_ += entry.bytes;
}

void CacheBudget::evict_too_much() {
  // Twice around at most: the first round may do nothing but take second chances.
  for (std::size_t left = 2 * row_.size(); used_bytes_ > limit_bytes_ && left > 0; --left) {
    Entry entry = std::move(row_.front());
    row_.pop_front();
    const std::shared_ptr<Blob> blob = entry.blob.lock();
    if (blob && (blob->used_again(entry.chunk) || !blob->evict(entry.chunk))) {
      row_.push_back(std::move(entry));
      continue;
    }
    gone(entry, blob != nullptr);
  }
}

std::uint64_t CacheBudget::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

std::uint64_t CacheBudget::evicted_bytes() const {
  const std::lock_guard lock(mutex_);
  return evicted_bytes_;
}

}  // namespace dsec::stored
