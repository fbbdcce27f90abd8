// The tests' own main: this program is the import worker's helper too.
#include <gtest/gtest.h>

#include <string_view>

#include "image/import_worker.h"

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "import-worker") return dsec::image::import_worker_main(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
