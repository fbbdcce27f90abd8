// Lines of an import worker that hostile bytes have taken over.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/encoding.h"
#include "image/import_messages.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsec;
  using namespace dsec::image;
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  const Result<WorkerLine> read = decode_line(line);
  if (!read.ok()) return 0;
  // One thing is said, and what people will see is plain text.
  if (read->progress.has_value() + read->result.has_value() + read->error.has_value() != 1) __builtin_trap();
  if (read->error && (!is_utf8(read->error->message()) || read->error->message().find('\n') != std::string::npos)) __builtin_trap();
  if (read->result && !decode_line(encode(*read->result)).ok()) __builtin_trap();
  return 0;
}
