// Tries a store for what layers need of it, so that an operator knows before
// anything depends on it. Writes objects of its own and removes them.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace dsec::origin {

enum class Finding {
  kHolds,
  kNoted,    // not so; we do without
  kRefused,  // not so, and layers cannot be kept there
};

struct ProbeRow {
  std::string name;
  Finding finding = Finding::kHolds;
  std::string detail;  // what was seen
};

std::string_view to_string(Finding finding);
// `url` as open_origin() takes it; `second` is another mount of the same
// directory, or "". An error when nothing could be tried.
Result<std::vector<ProbeRow>> probe_store(const std::string& url, const std::string& second, Deadline deadline);

// Of the two kinds of store.
std::vector<ProbeRow> probe_directory(const std::string& url, const std::string& second, Deadline deadline);
Result<std::vector<ProbeRow>> probe_bucket(const std::string& url, Deadline deadline);
// What both kinds share: publish, read back every range, publish again.
std::vector<ProbeRow> probe_origin(const std::string& url, Deadline deadline);

// A row from a result: kHolds, or `otherwise` with the error.
ProbeRow probe_row(std::string name, const Result<void>& seen, Finding otherwise, std::string detail = {});

}  // namespace dsec::origin
