// dsec: `serve`, the confined half of an import, and every verb of the client.
#include <cstring>

#include "cli/main.h"
#include "image/import_worker.h"
#include "serve.h"

int main(int argc, char** argv) {
  // First, before anything else is set up: this process is to have nothing.
  if (argc > 1 && std::strcmp(argv[1], "import-worker") == 0) return dsec::image::import_worker_main(argc, argv);
  if (argc > 1 && std::strcmp(argv[1], "serve") == 0) return dsec::serve_main(argc - 2, argv + 2);
  return dsec::cli::main(argc, argv);
}
