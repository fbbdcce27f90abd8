#include "agent/tar_format.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace dsec::agent {
namespace {

constexpr std::size_t kNameBytes = 100;
constexpr std::size_t kRecordLimit = 1 << 20;  // of pax records or a long name
constexpr std::uint64_t kOctalLimit = 1ull << 33;  // 11 digits
constexpr std::uint32_t kIdLimit = 1 << 21;        // 7 digits

// Offsets of a ustar header.
constexpr std::size_t kName = 0, kMode = 100, kUid = 108, kGid = 116, kSize = 124, kTime = 136, kChecksum = 148, kType = 156, kLink = 157,
                      kMagic = 257, kPrefix = 345;

void put_octal(char* at, std::size_t width, std::uint64_t value) {
  for (std::size_t i = width - 1; i-- > 0;) {
    at[i] = static_cast<char>('0' + (value & 7));
    value >>= 3;
  }
}

std::uint32_t checksum(const char* block) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < kTarBlock; ++i) {
    sum += i >= kChecksum && i < kChecksum + 8 ? ' ' : static_cast<unsigned char>(block[i]);
  }
  return sum;
}

std::string ustar_block(std::string_view name, char type, std::uint32_t mode, std::uint32_t uid, std::uint32_t gid, std::uint64_t size, std::int64_t mtime,
                        std::string_view link) {
  std::string block(kTarBlock, '\0');
  name.substr(0, kNameBytes).copy(block.data() + kName, kNameBytes);
  put_octal(block.data() + kMode, 8, mode & 07777);
  put_octal(block.data() + kUid, 8, std::min(uid, kIdLimit - 1));
  put_octal(block.data() + kGid, 8, std::min(gid, kIdLimit - 1));
  put_octal(block.data() + kSize, 12, size < kOctalLimit ? size : 0);
  put_octal(block.data() + kTime, 12, mtime > 0 ? std::min<std::uint64_t>(static_cast<std::uint64_t>(mtime), kOctalLimit - 1) : 0);
  block[kType] = type;
  link.substr(0, kNameBytes).copy(block.data() + kLink, kNameBytes);
  std::memcpy(block.data() + kMagic, "ustar\00000", 8);
  put_octal(block.data() + kChecksum, 7, checksum(block.data()));
  block[kChecksum + 7] = ' ';
  return block;
}

// "length key=value\n", where the length counts itself.
std::string pax_record(std::string_view key, std::string_view value) {
  const std::size_t rest = key.size() + value.size() + 3;
  std::size_t length = rest;
  while (std::to_string(length).size() + rest != length) length = std::to_string(length).size() + rest;
  return std::to_string(length).append(" ").append(key).append("=").append(value).append("\n");
}

char type_letter(TarType type) {
  switch (type) {
    case TarType::kDirectory: return '5';
    case TarType::kSymlink: return '2';
    case TarType::kHardLink: return '1';
    default: return '0';
  }
}

// Octal digits, or GNU's base 256.
std::optional<std::uint64_t> get_number(std::string_view field) {
  if ((static_cast<unsigned char>(field[0]) & 0x80) != 0) {
    if ((static_cast<unsigned char>(field[0]) & 0x40) != 0) return std::nullopt;  // negative
    std::uint64_t value = static_cast<unsigned char>(field[0]) & 0x3F;
    for (const char c : field.substr(1)) {
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | static_cast<unsigned char>(c);
    }
    return value;
  }
  std::uint64_t value = 0;
  while (!field.empty() && field[0] == ' ') field.remove_prefix(1);
  for (const char c : field) {
    if (c == '\0' || c == ' ') break;
    if (c < '0' || c > '7' || value >> 60 != 0) return std::nullopt;
    value = value << 3 | static_cast<std::uint64_t>(c - '0');
  }
  return value;
}

std::string get_text(const char* at, std::size_t width) { return std::string(at, ::strnlen(at, width)); }

template <typename T>
bool parse_decimal(std::string_view text, T& out) {
  // A fraction of a second is cut off.
  text = text.substr(0, text.find('.'));
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

struct PaxFields {
  std::optional<std::string> path, link;
  std::optional<std::uint64_t> size;
  std::optional<std::uint32_t> uid, gid;
  std::optional<std::int64_t> mtime;
};

bool parse_pax(std::string_view text, PaxFields& out) {
  while (!text.empty() && text[0] != '\0') {
    std::size_t length = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
    const auto digits = static_cast<std::size_t>(end - text.data());
    if (error != std::errc{} || length > text.size() || length < digits + 3 || *end != ' ' || text[length - 1] != '\n') return false;
    const std::string_view record = text.substr(digits + 1, length - digits - 2);
    text.remove_prefix(length);
    const std::size_t equals = record.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string_view key = record.substr(0, equals);
    const std::string_view value = record.substr(equals + 1);
    bool good = true;
    if (key == "path") {
      out.path = value;
    } else if (key == "linkpath") {
      out.link = value;
    } else if (key == "size") {
      good = parse_decimal(value, out.size.emplace());
    } else if (key == "uid") {
      good = parse_decimal(value, out.uid.emplace());
    } else if (key == "gid") {
      good = parse_decimal(value, out.gid.emplace());
    } else if (key == "mtime") {
      good = parse_decimal(value, out.mtime.emplace());
    } else if (key.starts_with("GNU.sparse")) {
      good = false;
    }
    if (!good) return false;
  }
  return true;
}

}  // namespace

std::string encode_tar_header(const TarEntry& entry) {
  std::string name = entry.path;
  if (entry.type == TarType::kDirectory && !name.ends_with('/')) name += '/';
  std::string records;
  if (name.size() > kNameBytes) records += pax_record("path", name);
  if (entry.link.size() > kNameBytes) records += pax_record("linkpath", entry.link);
  if (entry.size >= kOctalLimit) records += pax_record("size", std::to_string(entry.size));
  if (entry.uid >= kIdLimit) records += pax_record("uid", std::to_string(entry.uid));
  if (entry.gid >= kIdLimit) records += pax_record("gid", std::to_string(entry.gid));
  std::string out;
  if (!records.empty()) {
    out = ustar_block("././@PaxHeader", 'x', 0644, 0, 0, records.size(), 0, "");
    out += records;
    out += tar_padding(records.size());
  }
  return out + ustar_block(name, type_letter(entry.type), entry.mode, entry.uid, entry.gid, entry.size, entry.mtime, entry.link);
}

std::string tar_padding(std::uint64_t size) { return std::string((kTarBlock - size % kTarBlock) % kTarBlock, '\0'); }
std::string tar_end() { return std::string(2 * kTarBlock, '\0'); }

bool TarReader::fill(std::size_t bytes) {
  while (buffer_.size() - start_ < bytes) {
    std::string more = source_();
    if (more.empty()) return false;
    buffer_.erase(0, start_);
    start_ = 0;
    buffer_ += more;
  }
  return true;
}

Result<void> TarReader::skip(std::uint64_t bytes) {
  while (bytes > 0) {
    if (!fill(1)) return invalid_argument("the archive ends in the middle of an entry");
    const std::uint64_t step = std::min<std::uint64_t>(bytes, buffer_.size() - start_);
    start_ += static_cast<std::size_t>(step);
    bytes -= step;
  }
  return {};
}

Result<std::string> TarReader::take_record(std::uint64_t size) {
  if (size > kRecordLimit) return invalid_argument("a header of the archive is too large");
  const auto bytes = static_cast<std::size_t>(size);
  if (!fill(bytes)) return invalid_argument("the archive ends in the middle of an entry");
  std::string out = buffer_.substr(start_, bytes);
  start_ += bytes;
  DSEC_TRY(skip(tar_padding(size).size()));
  return out;
}

Result<std::optional<TarEntry>> TarReader::next() {
  DSEC_TRY(skip(data_left_));
  DSEC_TRY(skip(padding_left_));
  data_left_ = padding_left_ = 0;

  PaxFields pax;
  for (int headers = 0;; ++headers) {
    if (headers > 16) return invalid_argument("too many headers before an entry");
    if (!fill(kTarBlock)) {
      if (buffer_.size() == start_) return std::optional<TarEntry>();
      return invalid_argument("the archive ends in the middle of a header");
    }
    const std::string block = buffer_.substr(start_, kTarBlock);
    start_ += kTarBlock;
    if (block.find_first_not_of('\0') == std::string::npos) return std::optional<TarEntry>();
    const auto sum = get_number({block.data() + kChecksum, 8});
    if (!sum || *sum != checksum(block.data())) return invalid_argument("not a tar archive, or a damaged one");

    const auto size = get_number({block.data() + kSize, 12});
    const auto mode = get_number({block.data() + kMode, 8});
    const auto uid = get_number({block.data() + kUid, 8});
    const auto gid = get_number({block.data() + kGid, 8});
    const auto mtime = get_number({block.data() + kTime, 12});
    if (!size || !mode) return invalid_argument("a number in the archive is none");
    const char type = block[kType];
    if (type == 'x' || type == 'g' || type == 'L' || type == 'K') {
      DSEC_ASSIGN(const std::string record, take_record(*size));
      if (type == 'L') pax.path = get_text(record.data(), record.size());
      if (type == 'K') pax.link = get_text(record.data(), record.size());
      if (type == 'x' && !parse_pax(record, pax)) return invalid_argument("a pax header of the archive is malformed, or describes a sparse file");
      continue;
    }

    TarEntry entry;
    entry.path = get_text(block.data() + kName, kNameBytes);
    if (std::memcmp(block.data() + kMagic, "ustar\0", 6) == 0 && block[kPrefix] != '\0') {
      entry.path = get_text(block.data() + kPrefix, 155) + "/" + entry.path;
    }
    entry.link = get_text(block.data() + kLink, kNameBytes);
    if (pax.path) entry.path = *pax.path;
    if (pax.link) entry.link = *pax.link;
    entry.mode = static_cast<std::uint32_t>(*mode & 07777);
    entry.uid = pax.uid.value_or(static_cast<std::uint32_t>(uid.value_or(0)));
    entry.gid = pax.gid.value_or(static_cast<std::uint32_t>(gid.value_or(0)));
    entry.mtime = pax.mtime.value_or(static_cast<std::int64_t>(mtime.value_or(0)));
    entry.size = pax.size.value_or(*size);
    switch (type) {
      case '0':
      case '\0':
      case '7':
        entry.type = entry.path.ends_with('/') ? TarType::kDirectory : TarType::kFile;
        break;
      case '1': entry.type = TarType::kHardLink; break;
      case '2': entry.type = TarType::kSymlink; break;
      case '5': entry.type = TarType::kDirectory; break;
      case 'S': return invalid_argument("sparse files of GNU tar are not taken");
      default: entry.type = TarType::kOther; break;
    }
    // A link's header may carry the size of what it names, without data.
    if (entry.type == TarType::kSymlink || entry.type == TarType::kHardLink || entry.type == TarType::kDirectory) entry.size = 0;
    if (entry.path.find('\0') != std::string::npos || entry.link.find('\0') != std::string::npos) return invalid_argument("a name in the archive holds a NUL byte");
    if (entry.size > (1ull << 62)) return invalid_argument("a file in the archive is too large");
    data_left_ = entry.size;
    padding_left_ = tar_padding(entry.size).size();
    return std::optional<TarEntry>(std::move(entry));
  }
}

Result<std::string_view> TarReader::read_data() {
  if (data_left_ == 0) return std::string_view();
  if (!fill(1)) return invalid_argument("the archive ends in the middle of a file");
  const auto step = static_cast<std::size_t>(std::min<std::uint64_t>(data_left_, buffer_.size() - start_));
  const std::string_view out(buffer_.data() + start_, step);
  start_ += step;
  data_left_ -= step;
  return out;
}

void TarReader::drain() {
  buffer_.clear();
  start_ = 0;
  while (!source_().empty()) continue;
}

}  // namespace dsec::agent
