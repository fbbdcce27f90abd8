// `dsec serve`: apiserver, placement and edge in one process, keeper and spawner beside it.
#pragma once

namespace dsec {

// Returns the exit code: 0 after a clean stop, 1 when it could not run, 2 for a wrong argument.
int serve_main(int argc, char** argv);

}  // namespace dsec
