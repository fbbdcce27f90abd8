// Objects of a shared store as whoever can write there may put them: every parser
// is given the same bytes, since each knows its own by how they begin.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "origin/access_trace.h"
#include "origin/chunk_index.h"
#include "origin/manifest.h"
#include "origin/memory_origin.h"
#include "origin/packed_object.h"

namespace {

using namespace dsec;
using namespace dsec::origin;

constexpr std::uint64_t kObject = 3 * ChunkIndex::kChunkBytes + 5000;
constexpr std::uint64_t kPacked = 24 + 4 * 4 + 300 + 400 + ChunkIndex::kChunkBytes + 77;

void check(bool holds) {
  if (!holds) __builtin_trap();
}

void parse_index(std::string_view bytes) {
  const auto index = ChunkIndex::parse(bytes);
  if (!index.ok()) return;
  check(index->bytes() == bytes);
  if (index->chunks() > 0) check(index->size_of(index->chunks() - 1) > 0 && !index->fits(index->chunks() - 1, ""));
}

void parse_trace(std::string_view bytes) {
  const auto trace = AccessTrace::parse(bytes, kObject);
  if (!trace.ok()) return;
  check(trace->bytes() == bytes);
  for (const Touch& touch : trace->touches()) check(touch.chunk * ChunkIndex::kChunkBytes < kObject && touch.pages != 0);
}

void parse_table(std::string_view bytes) {
  if (!PackedTable::table_bytes(bytes, kPacked).ok()) return;
  const auto table = PackedTable::parse(bytes, kPacked);
  if (!table.ok()) return;
  check(table->bytes() == bytes && table->start_of(table->chunks()) == kPacked);
  for (std::uint64_t chunk = 0; chunk < table->chunks(); ++chunk) check(table->length_of(chunk) > 0 && table->length_of(chunk) <= table->size_of(chunk));
}

// All of it, as a packed object: what it holds is as long as it says, or an error.
void read_packed(std::string_view bytes) {
  const Deadline deadline = Deadline::in(std::chrono::seconds(60));
  MemoryOrigin store;
  const ObjectName name{ObjectKind::kPackedData, std::string(64, 'a')};
  store.replace(name, std::string(bytes));
  const auto object = open_packed(store.open(name, deadline).value(), deadline);
  if (!object.ok() || (*object)->size() > (64 << 20)) return;
  const auto all = (*object)->read(0, (*object)->size(), deadline);
  check(!all.ok() || all->size() == (*object)->size());
}

void parse_text(std::string_view bytes) {
  const std::string hex(64, 'a');
  const auto manifest = parse_manifest(bytes, hex);
  if (!manifest.ok()) return;
  const auto again = parse_manifest(to_text(*manifest), hex);
  check(again.ok() && *again == *manifest);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  parse_index(bytes);
  parse_trace(bytes);
  parse_table(bytes);
  read_packed(bytes);
  parse_text(bytes);
  return 0;
}
