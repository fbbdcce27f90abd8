// doctor: what this host can do, what is missing, how to mend it.
#include <unistd.h>

#include "cli/host_checks.h"
#include "cli/terminal.h"
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

}  // namespace

int doctor_verb(Context& context, bool json_output) {
  std::vector<HostCheck> checks = check_host();
  checks.push_back(check_server(context));
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
