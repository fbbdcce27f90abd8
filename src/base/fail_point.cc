#include "base/fail_point.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <string>

namespace dsec {
namespace {

struct Armed {
  enum class Action { kError, kKill, kDelay };
  std::string name;
  Action action = Action::kError;
  long number = 0;  // the pass that it is for, 0 = every one; of kDelay: microseconds
  std::atomic<long> passed{0};
};

// Read once; empty in production.
std::deque<Armed>& armed_points() {
  static std::deque<Armed> points = [] {
    std::deque<Armed> out;
    const char* text = std::getenv("DSEC_FAIL_POINT");
    std::string_view rest = text ? text : "";
    while (!rest.empty()) {
      const std::string_view item = rest.substr(0, rest.find(','));
      rest.remove_prefix(item.size() == rest.size() ? rest.size() : item.size() + 1);
      const auto equals = item.find('=');
      if (equals == std::string_view::npos) continue;
      std::string_view action = item.substr(equals + 1);
      Armed& point = out.emplace_back();
      point.name = item.substr(0, equals);
      if (const auto colon = action.find(':'); colon != std::string_view::npos) {
        point.number = std::strtol(std::string(action.substr(colon + 1)).c_str(), nullptr, 10);
        action = action.substr(0, colon);
      }
      point.action = action == "kill" ? Armed::Action::kKill : action == "delay" ? Armed::Action::kDelay : Armed::Action::kError;
    }
    return out;
  }();
  return points;
}

}  // namespace

char* fail_point_environment() {
  constexpr std::string_view kVariable = "DSEC_FAIL_POINT=";
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable)
    if (std::string_view(*variable).starts_with(kVariable)) return *variable;
  return nullptr;
}

Result<void> fail_point(std::string_view name) {
  for (Armed& point : armed_points()) {
    if (point.name != name) continue;
    if (point.action == Armed::Action::kDelay) {
      ::usleep(static_cast<useconds_t>(point.number));
      continue;
    }
    const long pass = point.passed.fetch_add(1) + 1;
    if (point.number != 0 && point.number != pass) continue;
    if (point.action == Armed::Action::kKill) {
      ::kill(::getpid(), SIGKILL);
      ::_exit(128 + SIGKILL);  // PID 1 of a namespace cannot be killed from inside
    }
    return Error(ErrorCode::kInternal, "fail point " + std::string(name));
  }
  return {};
}

}  // namespace dsec
