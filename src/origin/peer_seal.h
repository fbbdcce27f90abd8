// The secret of a fleet: by it nodes know one another's requests, and under it
// the bytes of an answer travel.
//
// A request is signed with its time, so that one that was overheard is worth
// something for minutes only; whoever repeats it gets bytes that are of no use to him.
// Each answer is sealed (AES-256-GCM) under a key made of the secret, the request's
// signature and 16 bytes of chance: no key is used twice, and no answer fits
// another request.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace dsec::origin {

class FleetKey {
 public:
  static constexpr std::size_t kLeastBytes = 32;
  static constexpr std::chrono::minutes kClocksDiffer{5};

  // All of a file that nobody but its owner may read, spaces around it aside.
  static Result<FleetKey> read(const std::string& file);
  // kInvalidArgument for fewer than kLeastBytes.
  static Result<FleetKey> of(std::string secret);

  // The value of Authorization for this request, which is its path and query.
  std::string sign(std::string_view target, WallTime now) const;
  // kUnauthenticated for another secret, another target, another time.
  Result<void> check(std::string_view target, std::string_view authorization, WallTime now) const;

  std::string seal(std::string_view bytes, std::string_view authorization) const;
  // kDataFault for what was not sealed for this request, by this secret.
  Result<std::string> open(std::string_view sealed, std::string_view authorization) const;
  static constexpr std::size_t kSealBytes = 32;  // more than what is sealed

 private:
  explicit FleetKey(std::string secret) : secret_(std::move(secret)) {}
  std::string secret_;
};

}  // namespace dsec::origin
