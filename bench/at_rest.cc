// What data costs in a store, plain and compressed: at_rest FILE SCRATCH [ROUNDS].
// FILE is a data object of a layer (layers/*.data), SCRATCH an empty folder. Prints one
// line of JSON: bytes in both forms, seconds to publish, and the median and 95th
// percentile of checked reads of one random chunk, in microseconds, taken in turns
// past the page cache where the file system can do that.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "origin/chunk_reader.h"
#include "origin/open_origin.h"
#include "sys/file.h"

namespace {

using namespace dsec;
using namespace dsec::origin;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }
Deadline patience() { return Deadline::in(std::chrono::minutes(30)); }

struct Form {
  std::string name;
  std::unique_ptr<Origin> store;
  std::unique_ptr<ChunkReader> reader;
  double publish_seconds = 0;
  std::uintmax_t bytes = 0;
  std::vector<double> reads_us;
};

std::uintmax_t bytes_below(const std::string& folder) {
  std::uintmax_t out = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) out += entry.file_size();
  return out;
}

Result<Form> publish(const std::string& name, const std::string& scratch, const Content& content, const ChunkIndex& index) {
  const std::string folder = scratch + "/" + name;
  DSEC_TRY(sys::make_directories(folder, 0700));
  Form form{.name = name};
  DSEC_ASSIGN(form.store, open_origin(folder + "?at-rest=" + name, patience()));
  const ObjectName object{ObjectKind::kData, content.hex()};
  const auto begin = Clock::now();
  DSEC_TRY(form.store->publish(object, content, patience()));
  form.publish_seconds = since(begin);
  form.bytes = bytes_below(folder);
  form.reader = std::make_unique<ChunkReader>(*form.store, object, index);
  return form;
}

Result<void> measure(std::vector<Form>& forms, std::uint64_t chunks, int rounds) {
  std::mt19937_64 random(1);
  for (int i = 0; i < rounds; ++i) {
    const std::uint64_t chunk = random() % chunks;
    for (Form& form : forms) {
      const auto begin = Clock::now();
      DSEC_ASSIGN(const Buffer bytes, form.reader->read(chunk, 1, patience()));
      form.reads_us.push_back(since(begin) * 1e6);
    }
  }
  return {};
}

double at(std::vector<double>& values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1))];
}

Result<void> run(const std::string& file, const std::string& scratch, int rounds) {
  DSEC_ASSIGN(const sys::Fd fd, sys::open_at(AT_FDCWD, file, O_RDONLY));
  DSEC_ASSIGN(const Content content, Content::of_file(fd.get()));
  DSEC_ASSIGN(const ChunkIndex index, ChunkIndex::of(content));
  if (index.chunks() == 0) return invalid_argument(file + " is empty");
  std::vector<Form> forms;
  for (const char* name : {"plain", "zstd"}) {
    DSEC_ASSIGN(Form form, publish(name, scratch, content, index));
    forms.push_back(std::move(form));
  }
  DSEC_TRY(measure(forms, index.chunks(), rounds));
  std::printf("{\"raw_bytes\": %llu", static_cast<unsigned long long>(content.size()));
  for (Form& form : forms)
    std::printf(", \"%s\": {\"bytes\": %llu, \"publish_seconds\": %.3f, \"read_us_median\": %.0f, \"read_us_p95\": %.0f}", form.name.c_str(),
                static_cast<unsigned long long>(form.bytes), form.publish_seconds, at(form.reads_us, 0.5), at(form.reads_us, 0.95));
  std::printf("}\n");
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) return std::fprintf(stderr, "usage: at_rest FILE SCRATCH [ROUNDS]\n"), 2;
  const auto done = run(argv[1], argv[2], argc == 4 ? std::max(1, std::atoi(argv[3])) : 500);
  if (!done.ok()) return std::fprintf(stderr, "%s\n", done.error().message().c_str()), 1;
  return 0;
}
