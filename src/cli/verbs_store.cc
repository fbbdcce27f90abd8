// `dsec store probe`: runs on this machine and asks no server.
#include "cli/verbs.h"
#include "origin/probe.h"

namespace dsec::cli {
namespace {

constexpr auto kPatience = std::chrono::minutes(2);

json::array rows_of(const std::vector<origin::ProbeRow>& rows) {
  json::array out;
  for (const origin::ProbeRow& row : rows) {
    const std::string_view finding = to_string(row.finding);
    out.push_back(json::object{{"check", row.name}, {"finding", json::string(finding.data(), finding.size())}, {"detail", row.detail}});
  }
  return out;
}

}  // namespace

int store_probe_verb(const std::string& url, const std::string& second, const ListingOptions& options) {
  const Result<std::vector<origin::ProbeRow>> rows = origin::probe_store(url, second, Deadline::in(kPatience));
  if (!rows.ok()) return fail(rows.error(), kUsage);
  const std::vector<Column> columns = {{"CHECK", [](const json::object& row) { return text_at(row, "check"); }},
                                       {"FINDING", [](const json::object& row) { return text_at(row, "finding"); }},
                                       {"DETAIL", [](const json::object& row) { return text_at(row, "detail"); }}};
  const auto text = listing(rows_of(*rows), columns, [](const json::object& row) { return text_at(row, "check"); }, options);
  if (!text.ok()) return fail(text.error(), kUsage);
  print(*text);
  const bool usable = std::none_of(rows->begin(), rows->end(), [](const origin::ProbeRow& row) { return row.finding == origin::Finding::kRefused; });
  return usable ? kOk : kFailed;
}

}  // namespace dsec::cli
