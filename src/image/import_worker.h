// The import worker: `dsec import-worker REQUEST`, started by the importer only.
//
// Descriptors: 0 the archive, 2 the importer's log pipe, 3 the answer pipe
// (import_messages.h). The current directory is its private one, which it owns.
#pragma once

namespace dsec::image {

// argv[1] is "import-worker", argv[2] the request. The exit code is for people:
// the answer pipe says what happened.
int import_worker_main(int argc, char** argv);

}  // namespace dsec::image
