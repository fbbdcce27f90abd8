// The system call filters of the import worker and of all that it runs.
#pragma once

#include "base/result.h"

namespace dsec::image {

// Everything but the calls of a program that reads a stream and writes files
// answers ENOSYS; sockets, new namespaces and mounts are among what is missing.
Result<void> install_parser_filter();
// What is left of it to a program that reads a tree below a directory that it has
// open, and writes files that it has open: no call that makes, changes or names
// anything else, not even a process.
Result<void> install_reader_filter();
// For package scripts, which are arbitrary programs: all but what reaches deep
// into the kernel.
Result<void> install_package_filter();

}  // namespace dsec::image
