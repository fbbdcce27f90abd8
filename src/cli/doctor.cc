// doctor: what this host can do, what is missing, how to mend it.
#include <unistd.h>

#include <cstdlib>
#include <optional>

#include "cli/host_checks.h"
#include "cli/terminal.h"
#include "cli/units_text.h"
#include "cli/verbs.h"

namespace dsec::cli {
namespace {

const char* word(CheckOutcome outcome) {
  switch (outcome) {
    case CheckOutcome::kGood: return "ok";
    case CheckOutcome::kWarning: return "warning";
    case CheckOutcome::kBad: break;
  }
  return "missing";
}

HostCheck check_server(Context& context) {
  auto answer = context.get("/v1/whoami");
  const std::string url = context.endpoint().url;
  if (answer.ok()) return {"server", CheckOutcome::kGood, url + " answers (" + context.endpoint().origin + ")", ""};
  // A server that is not there yet is no fault of the host.
  return {"server", CheckOutcome::kWarning, "not reachable", answer.error().message()};
}

// Of "# TYPE name gauge\nname 12\n…"; 0 for what is not there.
std::uint64_t gauge(const std::string& text, const std::string& name) {
  const std::size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at + name.size() + 2, nullptr, 10);
}

// What the server's node reads on demand, and whether reading ahead helps it.
std::optional<HostCheck> check_on_demand(Context& context) {
  const auto answer = context.raw({.target = "/metrics"});
  if (!answer.ok()) return std::nullopt;
  const std::uint64_t touched = gauge(answer->body, "dsec_store_touched_bytes");
  if (touched == 0) return std::nullopt;
  const std::uint64_t fetched = gauge(answer->body, "dsec_store_fetched_bytes");
  const std::uint64_t ahead = gauge(answer->body, "dsec_store_prefetched_bytes");
  const std::uint64_t useful = gauge(answer->body, "dsec_store_useful_bytes");
  std::string found = bytes_text(fetched) + " fetched for " + bytes_text(touched) + " that were read";
  if (ahead == 0) return HostCheck{"layers on demand", CheckOutcome::kGood, found + ", nothing ahead of readers", ""};
  found += "; " + bytes_text(ahead) + " of it ahead of readers, who came for " + std::to_string(useful * 100 / ahead) + " %";
  const bool helps = useful >= ahead / 2;
  return HostCheck{"layers on demand", helps ? CheckOutcome::kGood : CheckOutcome::kWarning, found,
                   helps ? "" : "`dsec layer inspect` says of which layers; remove the access traces of those from the store, or record them anew"};
}

}  // namespace

int doctor_verb(Context& context, bool json_output) {
  std::vector<HostCheck> checks = check_host();
  checks.push_back(check_server(context));
  if (std::optional<HostCheck> on_demand = check_on_demand(context)) checks.push_back(*std::move(on_demand));
  bool bad = false;
  for (const HostCheck& check : checks) bad = bad || check.outcome == CheckOutcome::kBad;
  if (json_output) {
    json::array items;
    for (const HostCheck& check : checks)
      items.push_back({{"check", check.name}, {"outcome", word(check.outcome)}, {"found", check.found}, {"remedy", check.remedy}});
    print(pretty(json::object{{"containers", !bad}, {"checks", items}}) + "\n");
    return bad ? kFailed : kOk;
  }
  const bool colour = is_terminal(STDOUT_FILENO) && !std::getenv("NO_COLOR");
  std::vector<std::vector<std::string>> rows;
  for (const HostCheck& check : checks) rows.push_back({check.name, word(check.outcome), check.found});
  const std::string table = align(rows);
  std::size_t begin = 0;
  for (const HostCheck& check : checks) {
    const std::size_t end = table.find('\n', begin);
    std::string line = table.substr(begin, end - begin);
    begin = end + 1;
    if (colour && check.outcome != CheckOutcome::kGood)
      line = (check.outcome == CheckOutcome::kBad ? "\x1b[31m" : "\x1b[33m") + line + "\x1b[0m";
    print(line + "\n");
    if (!check.remedy.empty()) print("    " + check.remedy + "\n");
  }
  print(bad ? "\nContainers cannot run here until what is missing is mended.\n" : "\nContainers can run here.\n");
  return bad ? kFailed : kOk;
}

}  // namespace dsec::cli
