#include "sys/node_memory.h"

#include <cstdlib>
#include <optional>

#include "sys/file.h"

namespace dsec::sys {

namespace {

std::optional<std::uint64_t> bytes_of(const std::string& meminfo, const std::string& name) {
  for (std::size_t at = 0; at < meminfo.size();) {
    if (meminfo.compare(at, name.size(), name) == 0) return std::strtoull(meminfo.c_str() + at + name.size(), nullptr, 10) << 10;
    const std::size_t end = meminfo.find('\n', at);
    at = end == std::string::npos ? meminfo.size() : end + 1;
  }
  return {};
}

}  // namespace

double pressure_of(const std::string& text, const std::string& kind, const std::string& name) {
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (!line.starts_with(kind + " ")) continue;
    const std::size_t at = line.find(" " + name + "=");
    return at == std::string::npos ? 0 : std::strtod(line.c_str() + at + name.size() + 2, nullptr);
  }
  return 0;
}

Result<NodeMemory> read_node_memory(const std::string& proc) {
  DSEC_ASSIGN(const std::string meminfo, read_file(proc + "/meminfo", 64 << 10));
  const auto total = bytes_of(meminfo, "MemTotal:");
  const auto available = bytes_of(meminfo, "MemAvailable:");
  if (!total || !available) return Error(ErrorCode::kUnsupported, "the kernel does not tell how much memory is available");
  NodeMemory out{.total_bytes = *total, .available_bytes = *available, .free_swap_bytes = bytes_of(meminfo, "SwapFree:").value_or(0)};
  if (const auto pressure = read_file(proc + "/pressure/memory"); pressure.ok()) out.stalled_percent = pressure_of(*pressure, "some", "avg10");
  return out;
}

}  // namespace dsec::sys
