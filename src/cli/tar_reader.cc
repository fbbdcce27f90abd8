#include "cli/tar_reader.h"

#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "sys/file.h"

namespace dsec::cli {
namespace {

constexpr std::size_t kMaxExtension = 1 << 20;

std::string field(std::string_view block, std::size_t at, std::size_t size) {
  const std::string_view text = block.substr(at, size);
  return std::string(text.substr(0, text.find('\0')));
}

// Octal text, or base 256 with the top bit set.
std::uint64_t number(std::string_view block, std::size_t at, std::size_t size) {
  std::uint64_t value = 0;
  if (static_cast<unsigned char>(block[at]) & 0x80) {
    for (std::size_t i = 1; i < size; ++i) value = (value << 8) | static_cast<unsigned char>(block[at + i]);
    return value;
  }
  for (std::size_t i = 0; i < size; ++i) {
    const char c = block[at + i];
    if (c >= '0' && c <= '7') value = value * 8 + static_cast<std::uint64_t>(c - '0');
    else if (value != 0 || c == '\0') break;
  }
  return value;
}

Result<std::vector<std::string>> components(const std::string& name) {
  std::vector<std::string> out;
  std::size_t begin = 0;
  while (begin <= name.size()) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (part == "..") return Error(ErrorCode::kDataFault, "the archive names a place outside: " + name);
    if (!part.empty() && part != ".") out.push_back(part);
    begin = end + 1;
  }
  return out;
}

Result<sys::Fd> open_beneath(int root, const std::string& path, int flags) {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  const long fd = ::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how);
  if (fd < 0) return errno_error(path, errno);
  return sys::Fd(static_cast<int>(fd));
}

// The directory that holds the last component; missing ones are made.
Result<sys::Fd> open_parent(int root, const std::vector<std::string>& parts) {
  DSEC_ASSIGN(sys::Fd here, sys::duplicate(root));
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    if (::mkdirat(here.get(), parts[i].c_str(), 0755) != 0 && errno != EEXIST) return errno_error(parts[i], errno);
    DSEC_ASSIGN(here, open_beneath(here.get(), parts[i], O_RDONLY | O_DIRECTORY));
  }
  return here;
}

}  // namespace

Result<TarReader> TarReader::open(const std::string& directory) {
  TarReader reader;
  DSEC_ASSIGN(reader.root_, sys::open_at(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY));
  return reader;
}

Result<void> TarReader::take(std::string_view bytes) {
  while (!bytes.empty() && !ended_) {
    if (body_ != Body::kNone && left_ > 0) {
      const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(left_, bytes.size()));
      if (body_ == Body::kFile) {
        DSEC_TRY(sys::write_all(file_.get(), bytes.substr(0, part)));
      } else if (body_ != Body::kSkip) {
        if (extension_.size() + part > kMaxExtension) return Error(ErrorCode::kDataFault, "an archive header is too large");
        extension_.append(bytes.substr(0, part));
      }
      left_ -= part;
      bytes.remove_prefix(part);
    } else if (padding_ > 0) {
      const std::size_t part = std::min(padding_, bytes.size());
      padding_ -= part;
      bytes.remove_prefix(part);
    } else {
      if (body_ != Body::kNone) {
        DSEC_TRY(end_extension());
        continue;
      }
      const std::size_t part = std::min(512 - block_.size(), bytes.size());
      block_.append(bytes.substr(0, part));
      bytes.remove_prefix(part);
      if (block_.size() == 512) {
        const std::string block = std::move(block_);
        block_.clear();
        DSEC_TRY(header(block));
      }
    }
    if (body_ != Body::kNone && left_ == 0 && padding_ == 0) DSEC_TRY(end_extension());
  }
  return {};
}

Result<void> TarReader::end_extension() {
  if (body_ == Body::kFile) file_.reset();
  if (body_ == Body::kLongName) next_name_ = extension_.substr(0, extension_.find('\0'));
  if (body_ == Body::kLongLink) next_link_ = extension_.substr(0, extension_.find('\0'));
  if (body_ == Body::kPax) {
    std::string_view rest = extension_;
    while (!rest.empty()) {
      std::size_t length = 0;
      const auto parsed = std::from_chars(rest.data(), rest.data() + rest.size(), length);
      const std::size_t begin = static_cast<std::size_t>(parsed.ptr - rest.data()) + 1;
      if (parsed.ec != std::errc() || length > rest.size() || length <= begin) return Error(ErrorCode::kDataFault, "a pax record of the archive is malformed");
      const std::string_view record = rest.substr(begin, length - begin - 1);
      rest.remove_prefix(length);
      const std::size_t equals = record.find('=');
      if (equals == std::string_view::npos) continue;
      const std::string_view key = record.substr(0, equals);
      const std::string value(record.substr(equals + 1));
      if (key == "path") next_name_ = value;
      if (key == "linkpath") next_link_ = value;
      if (key == "size") std::from_chars(value.data(), value.data() + value.size(), next_size_);
    }
  }
  body_ = Body::kNone;
  extension_.clear();
  return {};
}

Result<void> TarReader::header(std::string_view block) {
  if (block.find_first_not_of('\0') == std::string_view::npos) {
    ended_ = true;
    return {};
  }
  unsigned sum = 0;
  for (std::size_t i = 0; i < 512; ++i) sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(block[i]);
  if (sum != number(block, 148, 8)) return Error(ErrorCode::kDataFault, "what came is no tar archive");
  const char type = block[156];
  std::uint64_t size = number(block, 124, 12);
  const bool extension = type == 'x' || type == 'g' || type == 'L' || type == 'K';
  if (!extension && next_size_ >= 0) size = static_cast<std::uint64_t>(next_size_);
  left_ = size;
  padding_ = static_cast<std::size_t>((512 - size % 512) % 512);
  if (extension) {
    body_ = type == 'x' ? Body::kPax : type == 'L' ? Body::kLongName : type == 'K' ? Body::kLongLink : Body::kSkip;
    return {};
  }
  const auto outcome = begin_entry(block, type, size);
  next_name_.clear();
  next_link_.clear();
  next_size_ = -1;
  return outcome;
}

Result<void> TarReader::begin_entry(std::string_view block, char type, std::uint64_t size) {
  std::string name = next_name_;
  if (name.empty()) {
    name = field(block, 0, 100);
    const std::string prefix = block.substr(257, 5) == "ustar" ? field(block, 345, 155) : "";
    if (!prefix.empty()) name = prefix + "/" + name;
  }
  const std::string link = next_link_.empty() ? field(block, 157, 100) : next_link_;
  const auto mode = static_cast<mode_t>(number(block, 100, 8) & 0777);
  body_ = size > 0 ? Body::kSkip : Body::kNone;
  DSEC_ASSIGN(const std::vector<std::string> parts, components(name));
  if (parts.empty()) return {};
  DSEC_ASSIGN(const sys::Fd parent, open_parent(root_.get(), parts));
  const char* last = parts.back().c_str();
  ++entries_;
  if (type == '5') {
    if (::mkdirat(parent.get(), last, 0700) != 0) {
      struct stat info {};
      if (errno != EEXIST || ::fstatat(parent.get(), last, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(info.st_mode))
        return errno_error(name, EEXIST);
    }
    DSEC_ASSIGN(const sys::Fd made, open_beneath(parent.get(), last, O_RDONLY | O_DIRECTORY));
    if (::fchmod(made.get(), mode | 0700) != 0) return errno_error(name, errno);
    return {};
  }
  if (::unlinkat(parent.get(), last, 0) != 0 && errno != ENOENT) return errno_error(name, errno);
  if (type == '0' || type == '\0' || type == '7') {
    DSEC_ASSIGN(file_, sys::open_at(parent.get(), last, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
    if (::fchmod(file_.get(), mode) != 0) return errno_error(name, errno);
    body_ = Body::kFile;
    if (size == 0) return end_extension();
  } else if (type == '2') {
    if (::symlinkat(link.c_str(), parent.get(), last) != 0) return errno_error(name, errno);
  } else if (type == '1') {
    DSEC_ASSIGN(const std::vector<std::string> target, components(link));
    if (target.empty()) return Error(ErrorCode::kDataFault, "a hard link of the archive names nothing: " + name);
    DSEC_ASSIGN(const sys::Fd from, open_parent(root_.get(), target));
    struct stat info {};
    if (::fstatat(from.get(), target.back().c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode))
      return Error(ErrorCode::kDataFault, "a hard link of the archive names no file: " + name);
    if (::linkat(from.get(), target.back().c_str(), parent.get(), last, 0) != 0) return errno_error(name, errno);
  } else {
    --entries_;
    if (skipped_.size() < 100) skipped_.push_back(name);
  }
  return {};
}

Result<void> TarReader::finish() {
  if (ended_ || (body_ == Body::kNone && block_.empty() && left_ == 0)) return {};
  return Error(ErrorCode::kDataFault, "the archive stopped in the middle");
}

}  // namespace dsec::cli
