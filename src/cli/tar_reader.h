// Unpacks a tar stream of a hostile origin: what a sandbox sends to `dsec cp`.
//
// Everything lands below the target, whatever the names and links say: each
// component is opened without following links. Owners, setuid bits and devices
// are not taken over.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sys/fd.h"

namespace dsec::cli {

class TarReader {
 public:
  // `directory` exists.
  static Result<TarReader> open(const std::string& directory);
  // Takes the next bytes of the stream, in any portions.
  Result<void> take(std::string_view bytes);
  // kDataFault when the stream stopped in the middle.
  Result<void> finish();
  std::uint64_t entries() const { return entries_; }
  const std::vector<std::string>& skipped() const { return skipped_; }  // devices and FIFOs

 private:
  Result<void> header(std::string_view block);
  Result<void> begin_entry(std::string_view block, char type, std::uint64_t size);
  Result<void> end_extension();

  sys::Fd root_;
  std::string block_;
  enum class Body { kNone, kFile, kSkip, kPax, kLongName, kLongLink } body_ = Body::kNone;
  std::uint64_t left_ = 0;
  std::size_t padding_ = 0;
  std::string extension_;
  std::string next_name_;
  std::string next_link_;
  std::int64_t next_size_ = -1;
  sys::Fd file_;
  std::uint64_t entries_ = 0;
  bool ended_ = false;
  std::vector<std::string> skipped_;
};

}  // namespace dsec::cli
