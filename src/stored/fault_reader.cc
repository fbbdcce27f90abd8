#include "stored/fault_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json.hpp>

#include "sys/file.h"

namespace dsec::stored {

namespace json = boost::json;

namespace {

std::string text_of(const json::object& line, const char* key) {
  const json::value* value = line.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

// A line that is none is skipped: it says nothing about anybody.
void add_fault(std::string_view text, std::vector<image::DataFault>& out) {
  boost::system::error_code failure;
  const json::value value = json::parse(text, failure);
  if (failure || !value.is_object()) return;
  const json::object& line = value.get_object();
  const json::value* at = line.if_contains("at_ms");
  image::DataFault fault{.data = text_of(line, "data"), .cgroup = text_of(line, "cgroup"), .why = text_of(line, "kind") + ": " + text_of(line, "why")};
  if (at == nullptr || !at->is_int64() || fault.data.empty()) return;
  fault.at_ms = at->get_int64();
  out.push_back(std::move(fault));
}

}  // namespace

std::vector<image::DataFault> FaultReader::take_new() {
  std::vector<image::DataFault> out;
  const std::lock_guard lock(mutex_);
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) return out;
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size < offset_) offset_ = 0;  // started anew
  if (size == offset_) return out;
  const auto file = sys::open_at(AT_FDCWD, path_, O_RDONLY);
  if (!file.ok()) return out;
  std::string bytes(size - offset_, '\0');
  const ssize_t got = ::pread(file->get(), bytes.data(), bytes.size(), static_cast<off_t>(offset_));
  if (got <= 0) return out;
  bytes.resize(static_cast<std::size_t>(got));
  std::size_t begin = 0;
  // A line without its end is being written.
  for (std::size_t end = bytes.find('\n'); end != std::string::npos; end = bytes.find('\n', begin)) {
    add_fault(std::string_view(bytes).substr(begin, end - begin), out);
    begin = end + 1;
  }
  offset_ += begin;
  return out;
}

}  // namespace dsec::stored
