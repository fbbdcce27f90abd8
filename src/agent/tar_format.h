// The tar format: ustar headers with pax records for what does not fit, written
// and read as a stream. Reading also takes GNU long names. Pure: no file is touched.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace dsec::agent {

enum class TarType : std::uint8_t { kFile, kDirectory, kSymlink, kHardLink, kOther };

struct TarEntry {
  std::string path;
  TarType type = TarType::kFile;
  std::uint32_t mode = 0;
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::uint64_t size = 0;  // of the data that follows
  std::int64_t mtime = 0;  // seconds
  std::string link;        // target of a link
};

inline constexpr std::size_t kTarBlock = 512;

// One to several blocks; the data and its padding follow.
std::string encode_tar_header(const TarEntry& entry);
// Zeros up to the next block.
std::string tar_padding(std::uint64_t size);
std::string tar_end();

class TarReader {
 public:
  // Gives the next bytes of the stream, "" at its end.
  explicit TarReader(std::function<std::string()> source) : source_(std::move(source)) {}

  // The next entry, nothing at the end of the archive. Data of the last entry
  // that was not read is passed over. kInvalidArgument for what is no tar.
  Result<std::optional<TarEntry>> next();
  // Up to a chunk of the entry's data, valid until the next call; "" at its end.
  Result<std::string_view> read_data();
  // What follows the archive's end, to its last byte.
  void drain();

 private:
  bool fill(std::size_t bytes);
  Result<std::string> take_record(std::uint64_t size);
  Result<void> skip(std::uint64_t bytes);

  std::function<std::string()> source_;
  std::string buffer_;
  std::size_t start_ = 0;
  std::uint64_t data_left_ = 0;
  std::uint64_t padding_left_ = 0;
};

}  // namespace dsec::agent
