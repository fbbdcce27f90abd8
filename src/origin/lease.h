// What a node needs of a shared store, said in the store itself: garbage
// collection (collection.h) leaves alone what a lease names.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "origin/origin.h"

namespace dsec::origin {

struct Lease {
  std::string node;
  std::int64_t written_ms = 0;  // Unix time of the node
  std::int64_t expires_ms = 0;
  std::set<std::string> hexes;  // of layers, and of data and indexes that no manifest names yet
  bool operator==(const Lease&) const = default;
};

inline constexpr std::size_t kMaxLeaseBytes = 64 << 20;

std::string to_text(const Lease& lease);
// kDataFault for what is none.
Result<Lease> parse_lease(std::string_view text);

// A node's lease. Safe on any thread.
class LeaseHolder {
 public:
  struct Options {
    std::string node;        // nobody else's; of printable characters
    std::string state_file;  // where this node remembers which leases of the store are its own
    std::chrono::milliseconds valid = std::chrono::hours(24);
    Duration look_again = std::chrono::seconds(1);  // at a mark that is in the way
  };
  // All are outlived by the origin and the clock.
  LeaseHolder(Origin& origin, const Clock& clock, Options options) : origin_(origin), clock_(clock), options_(std::move(options)) {}

  // While it lives the lease names these, whatever renew() says.
  class Held {
   public:
    Held() = default;
    Held(LeaseHolder& holder, std::vector<std::string> hexes) : holder_(&holder), hexes_(std::move(hexes)) {}
    Held(Held&& other) noexcept : holder_(std::exchange(other.holder_, nullptr)), hexes_(std::move(other.hexes_)) {}
    Held& operator=(Held&& other) noexcept;
    ~Held() { release(); }

   private:
    void release();
    LeaseHolder* holder_ = nullptr;
    std::vector<std::string> hexes_;
  };
  // After success none of these is removed, or being removed; they need not be there.
  // kUnavailable when a removal that has begun is not over by the deadline.
  Result<Held> hold(std::vector<std::string> hexes, Deadline deadline);
  // The lease names these from now on, and what is held. True: there was a time, since
  // the last call of this process or an earlier one, at which no lease of this node was valid.
  Result<bool> renew(const std::set<std::string>& hexes, Deadline deadline);

 private:
  // With writing_ held.
  Result<void> write(std::set<std::string> hexes, Deadline deadline);
  Result<void> find_earlier(Deadline deadline);
  Result<void> remember(const std::vector<ObjectName>& leases) const;
  Result<void> wait_until_unmarked(const std::string& hex, Deadline deadline);
  std::set<std::string> held() const;
  std::int64_t now_ms() const;

  Origin& origin_;
  const Clock& clock_;
  const Options options_;
  std::mutex writing_;  // one lease is written at a time; held over calls of the origin
  Lease written_;       // by writing_
  std::vector<ObjectName> objects_;  // leases of this node in the store; by writing_
  bool looked_ = false;              // for those of an earlier process; by writing_
  mutable std::mutex mutex_;  // guards held_; never held over a call
  std::map<std::string, std::size_t> held_;
};

}  // namespace dsec::origin
