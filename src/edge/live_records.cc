#include "edge/live_records.h"

#include "edge/wal_records.h"

namespace dsec::edge {

namespace {

constexpr std::size_t kEventsKept = 256;  // the newest of each sandbox

// Records that say all there is to say of their subject; those of one kind replace one another. 0 = not such a one.
char whole_statement(std::uint8_t type) {
  switch (static_cast<WalType>(type)) {
    case WalType::kPaused:
    case WalType::kResumed: return 'p';
    case WalType::kFenced: return 'f';
    case WalType::kHeld:
    case WalType::kHoldEnded: return 'h';
    default: return 0;
  }
}

}  // namespace

void LiveRecords::note(std::uint8_t type, std::string_view body) {
  if (static_cast<WalType>(type) == WalType::kEdgeStart) {
    ++starts_;
    return;
  }
  Result<std::string> id = sandbox_of(body);
  if (!id.ok()) return;
  if (const char kind = whole_statement(type); kind != 0) ++left_[{kind, *id}];
  if (static_cast<WalType>(type) == WalType::kEvent) ++left_[{'e', *id}];
  if (static_cast<WalType>(type) == WalType::kForgotten) forgotten_.insert(std::move(id).value());
}

bool LiveRecords::keep(std::uint8_t type, std::string_view body) {
  if (static_cast<WalType>(type) == WalType::kEdgeStart) return --starts_ == 0;
  const Result<std::string> id = sandbox_of(body);
  if (!id.ok()) return true;
  if (const char kind = whole_statement(type); kind != 0 && --left_[{kind, *id}] > 0) return false;
  if (static_cast<WalType>(type) == WalType::kEvent && left_[{'e', *id}]-- > kEventsKept) return false;
  // What it ends is gone too.
  if (static_cast<WalType>(type) == WalType::kHoldEnded) return false;
  if (!forgotten_.contains(*id)) return true;
  if (static_cast<WalType>(type) == WalType::kForgotten) return keyed_.contains(*id);
  if (static_cast<WalType>(type) != WalType::kAccepted) return false;
  const Result<AcceptedRecord> accepted = decode_record<AcceptedRecord>(body);
  if (!accepted.ok() || accepted->idempotency_key.empty() || accepted->created_at_ms < oldest_key_ms_) return false;
  keyed_.insert(*id);
  return true;
}

}  // namespace dsec::edge
