// What this host can do, each fact by trying it where that is harmless.
#pragma once

#include <string>
#include <vector>

namespace dsec::cli {

enum class CheckOutcome { kGood, kWarning, kBad };  // kBad: containers cannot run

struct HostCheck {
  std::string name;
  CheckOutcome outcome = CheckOutcome::kGood;
  std::string found;
  std::string remedy;  // "" when there is nothing to mend
};

std::vector<HostCheck> check_host();

// "6.18.0-x" -> 6018; 0 when it is no version
int kernel_version_number(const std::string& release);

}  // namespace dsec::cli
