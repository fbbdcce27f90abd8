#include "stored/prefetch_verdict.h"

#include <boost/json.hpp>

#include "sys/file.h"

namespace dsec::stored {

namespace json = boost::json;

namespace {

constexpr std::uint64_t kEnough = 4 << 20;

std::string path_of(const std::string& state, const std::string& hex) { return state + "/" + hex + kVerdictSuffix; }

}  // namespace

Result<void> save_verdict(const std::string& state, const std::string& hex, const BlobCounts& counts) {
  if (counts.prefetched_bytes < kEnough) return {};
  const json::object text = {{"off", counts.useful_bytes < counts.prefetched_bytes / 2}, {"prefetched_bytes", counts.prefetched_bytes}, {"useful_bytes", counts.useful_bytes}};
  return sys::replace_file(path_of(state, hex), json::serialize(text) + "\n", 0600);
}

bool prefetch_is_off(const std::string& state, const std::string& hex) {
  const auto text = sys::read_file(path_of(state, hex));
  if (!text.ok()) return false;
  boost::system::error_code failure;
  const json::value value = json::parse(*text, failure);
  const json::object* const found = failure ? nullptr : value.if_object();
  const json::value* const off = found ? found->if_contains("off") : nullptr;
  return off != nullptr && off->is_bool() && off->get_bool();
}

}  // namespace dsec::stored
