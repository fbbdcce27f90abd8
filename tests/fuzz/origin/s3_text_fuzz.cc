// What a bucket's server says in XML.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "origin/object_name.h"
#include "origin/s3_text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsec::origin;
  const std::string_view xml(reinterpret_cast<const char*>(data), size);
  for (const char* element : {"Key", "IsTruncated", "Code", "UploadId"}) {
    const std::string first = first_text_of(xml, element);
    const auto all = texts_of(xml, element);
    if (!all.ok()) continue;
    if (first != (all->empty() ? "" : all->front())) __builtin_trap();
    for (const std::string& text : *all) {
      if (text.size() > xml.size()) __builtin_trap();
      if (const auto name = parse_object_path(text); name.ok() && name->path() != text) __builtin_trap();
    }
  }
  return 0;
}
