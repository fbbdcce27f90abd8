// A tar reader fed in odd pieces ends, with entries or an error, and reads what
// the writer wrote.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "agent/tar_format.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsec::agent;
  if (size == 0) return 0;
  const std::size_t piece = 1 + data[0] * 7;
  std::string stream(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::size_t at = 0;
  TarReader reader([&] {
    std::string bytes = stream.substr(at, piece);
    at += bytes.size();
    return bytes;
  });
  for (;;) {
    auto entry = reader.next();
    if (!entry.ok() || !*entry) break;
    if ((*entry)->path.find('\0') != std::string::npos) std::abort();
    // Written again, it is the same entry.
    TarEntry copy = **entry;
    if (copy.type == TarType::kOther || copy.path.empty() || copy.mtime < 0) continue;
    std::string again = encode_tar_header(copy);
    std::size_t read = 0;
    TarReader second([&] {
      std::string bytes = again.substr(read, 512);
      read += bytes.size();
      return bytes;
    });
    auto back = second.next();
    if (!back.ok() || !*back || (*back)->link != copy.link || (*back)->size != copy.size) std::abort();
    const std::string slash = copy.type == TarType::kDirectory && !copy.path.ends_with('/') ? "/" : "";
    if ((*back)->path != copy.path + slash) std::abort();
  }
  return 0;
}
