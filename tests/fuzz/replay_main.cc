// Runs a fuzz target without libFuzzer: every file below the given directories,
// then a fixed number of seeded mutations of each, so that the ordinary test
// run covers what fuzzing once found and a little around it.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr int kMutationsOfEach = 2000;

void run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

std::string mutate(std::string input, std::mt19937& random) {
  const int edits = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < edits; ++i) {
    const std::size_t at = input.empty() ? 0 : random() % input.size();
    switch (random() % 4) {
      case 0:
        if (!input.empty()) input[at] = static_cast<char>(random());
        break;
      case 1:
        input.insert(at, 1, static_cast<char>(random()));
        break;
      case 2:
        input.resize(at);
        break;
      default:
        input.insert(at, input.substr(at, random() % 64));
    }
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> inputs = {""};
  for (int i = 1; i < argc; ++i) {
    std::error_code ignored;  // a target without a corpus starts from the empty input
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i], ignored)) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  }
  std::mt19937 random(1);
  for (const std::string& input : inputs) {
    run(input);
    for (int i = 0; i < kMutationsOfEach; ++i) run(mutate(input, random));
  }
  std::printf("%zu inputs, %d mutations of each\n", inputs.size(), kMutationsOfEach);
  return 0;
}
