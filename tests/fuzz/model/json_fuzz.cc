// Request bodies and records: an error or a value, and a value that was taken
// says itself the same way twice.
#include "model/json.h"

#include <boost/json.hpp>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/selector.h"
#include "model/service.h"
#include "model/strict_object.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsec::model;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)parse_ref(text);
  (void)parse_sandbox_state(text);
  (void)normal_host_name(text);
  const auto value = parse_json(text);
  if (!value.ok()) return 0;
  if (const auto spec = spec_from_json(*value, {"wait_ms"}); spec.ok()) {
    (void)validate(*spec);
    const auto again = spec_from_json(to_json(*spec));
    if (!again.ok() || boost::json::serialize(to_json(*again)) != boost::json::serialize(to_json(*spec))) std::abort();
  }
  (void)sandbox_from_json(*value);
  (void)layer_from_json(*value);
  (void)service_from_json(*value);
  return 0;
}
