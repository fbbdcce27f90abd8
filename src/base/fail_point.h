// Named places where a test makes the process die, a step fail, or a step take longer.
//
// DSEC_FAIL_POINT="edge.wal.append=kill:3,spawner.root=error" in the
// environment at start: the third pass of the first kills the process by
// SIGKILL, every pass of the second makes the step return an error;
// "origin.directory.read=delay:300" makes each pass wait 300 us. Without the
// variable a pass costs one load.
#pragma once

#include <string_view>

#include "base/result.h"

namespace dsec {

// Returns an error (kInternal, "fail point NAME") when the step is to fail.
Result<void> fail_point(std::string_view name);

// The variable as this process has it, "DSEC_FAIL_POINT=…", for a child that is
// given an environment of its own; nullptr without. No allocation.
char* fail_point_environment();

}  // namespace dsec
