// A program that the confined worker runs and waits for.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace dsec::image {

// Files for what a program prints; "" = the worker's standard error.
struct ProgramOutput {
  std::string output;
  std::string errors;
};

// No shell. The program has no input and exactly `environment`. Reaps other children too, as the worker is
// process 1 of its namespace. An exit code other than 0 is kInternal.
Result<void> run_program(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
                         const ProgramOutput& printed = {});

}  // namespace dsec::image
