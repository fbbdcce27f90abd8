#include "cli/tar_writer.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "sys/file.h"

namespace dsec::cli {
namespace {

constexpr std::size_t kPart = 256 << 10;

struct UstarHeader {
  char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100], magic[6], version[2], user[32], group[32],
      major[8], minor[8], prefix[155], padding[12];
};
static_assert(sizeof(UstarHeader) == 512);

// false when the number does not fit; a pax record carries it then.
template <std::size_t N>
bool put_octal(char (&field)[N], std::uint64_t value) {
  char text[24];
  const auto end = std::to_chars(text, text + sizeof text, value, 8).ptr;
  const auto digits = static_cast<std::size_t>(end - text);
  std::fill_n(field, N - 1, '0');
  if (digits > N - 1) return false;
  std::memcpy(field + (N - 1 - digits), text, digits);
  return true;
}

// name into name and prefix; false when it does not fit
bool put_name(UstarHeader& header, const std::string& name) {
  if (name.size() <= sizeof header.name) {
    std::memcpy(header.name, name.data(), name.size());
    return true;
  }
  const std::size_t cut = name.find('/', name.size() - sizeof header.name - 1);
  if (cut > sizeof header.prefix /* or npos */ || cut + 1 == name.size()) {
    std::memcpy(header.name, name.data(), sizeof header.name);
    return false;
  }
  std::memcpy(header.prefix, name.data(), cut);
  std::memcpy(header.name, name.data() + cut + 1, name.size() - cut - 1);
  return true;
}

std::string block_of(UstarHeader header) {
  std::memset(header.checksum, ' ', sizeof header.checksum);
  unsigned sum = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(&header);
  for (std::size_t i = 0; i < sizeof header; ++i) sum += bytes[i];
  char digits[7] = {};
  put_octal(digits, sum);
  std::memcpy(header.checksum, digits, 6);
  header.checksum[6] = '\0';
  header.checksum[7] = ' ';
  return std::string(reinterpret_cast<const char*>(&header), sizeof header);
}

// "30 path=…\n", where the length counts itself
std::string pax_record(const std::string& key, const std::string& value) {
  const std::size_t rest = key.size() + value.size() + 3;
  std::size_t length = rest + 1;
  while (std::to_string(length).size() + rest != length) length = std::to_string(length).size() + rest;
  return std::to_string(length) + " " + key + "=" + value + "\n";
}

UstarHeader blank(char type) {
  UstarHeader header;
  std::memset(&header, 0, sizeof header);
  header.type = type;
  std::memcpy(header.magic, "ustar", 6);
  std::memcpy(header.version, "00", 2);
  return header;
}

}  // namespace

Result<Owner> parse_owner(std::string_view text) {
  Owner out;
  const std::size_t colon = text.find(':');
  const auto number = [](std::string_view part, std::uint64_t& value) {
    const auto parsed = std::from_chars(part.data(), part.data() + part.size(), value);
    return !part.empty() && parsed.ec == std::errc() && parsed.ptr == part.data() + part.size() && value < (1ULL << 32);
  };
  if (colon == std::string_view::npos || !number(text.substr(0, colon), out.uid) || !number(text.substr(colon + 1), out.gid))
    return invalid_argument("\"" + std::string(text) + "\" is no owner: write UID:GID, as 0:0");
  return out;
}

std::string tar_header(const TarEntry& entry) {
  std::string pax;
  UstarHeader header = blank(entry.type);
  const std::string name = entry.type == '5' && !entry.name.ends_with('/') ? entry.name + "/" : entry.name;
  if (!put_name(header, name)) pax += pax_record("path", name);
  std::memcpy(header.link, entry.link.data(), std::min(entry.link.size(), sizeof header.link));
  if (entry.link.size() > sizeof header.link) pax += pax_record("linkpath", entry.link);
  put_octal(header.mode, entry.mode & 07777);
  if (!put_octal(header.uid, entry.uid)) pax += pax_record("uid", std::to_string(entry.uid));
  if (!put_octal(header.gid, entry.gid)) pax += pax_record("gid", std::to_string(entry.gid));
  if (!put_octal(header.size, entry.size)) pax += pax_record("size", std::to_string(entry.size));
  if (!put_octal(header.mtime, static_cast<std::uint64_t>(std::max<std::int64_t>(0, entry.mtime)))) pax += pax_record("mtime", std::to_string(entry.mtime));
  put_octal(header.major, entry.device_major);
  put_octal(header.minor, entry.device_minor);
  std::string out;
  if (!pax.empty()) {
    UstarHeader extended = blank('x');
    std::memcpy(extended.name, "PaxHeader", 9);
    put_octal(extended.mode, 0644);
    put_octal(extended.uid, 0);
    put_octal(extended.gid, 0);
    put_octal(extended.size, pax.size());
    put_octal(extended.mtime, 0);
    out = block_of(extended) + pax + std::string(tar_padding(pax.size()), '\0');
  }
  return out + block_of(header);
}

Result<TarWriter> TarWriter::open(const std::string& root, Options options) {
  struct stat info {};
  if (::stat(root.c_str(), &info) != 0) return errno_error(root, errno);
  TarWriter writer;
  writer.options_ = std::move(options);
  if (S_ISDIR(info.st_mode)) {
    DSEC_TRY(writer.push_children({root, ""}));
  } else {
    std::string path = root;
    while (path.size() > 1 && path.ends_with('/')) path.pop_back();
    writer.stack_.push_back({path, path.substr(path.rfind('/') + 1)});
  }
  return writer;
}

Result<void> TarWriter::push_children(const Pending& directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(directory.path.c_str()), ::closedir);
  if (!listing) return errno_error(directory.path, errno);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(listing.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return errno_error(directory.path, errno);
  std::sort(names.begin(), names.end(), std::greater<>());
  for (std::string& name : names)
    stack_.push_back({directory.path + "/" + name, directory.name.empty() ? name : directory.name + "/" + name});
  return {};
}

Result<void> TarWriter::add(const Pending& pending, std::string& out) {
  struct stat info {};
  if (::lstat(pending.path.c_str(), &info) != 0) return errno_error(pending.path, errno);
  if (options_.skip && options_.skip(pending.name)) return S_ISDIR(info.st_mode) && options_.descend ? push_children(pending) : Result<void>();
  TarEntry entry;
  entry.name = options_.prefix + pending.name;
  entry.mode = info.st_mode & 07777;
  entry.uid = options_.owner ? options_.owner->uid : info.st_uid;
  entry.gid = options_.owner ? options_.owner->gid : info.st_gid;
  entry.mtime = info.st_mtim.tv_sec;
  switch (info.st_mode & S_IFMT) {
    case S_IFDIR:
      entry.type = '5';
      DSEC_TRY(push_children(pending));
      break;
    case S_IFLNK: {
      entry.type = '2';
      entry.link.resize(4096);
      const ssize_t length = ::readlink(pending.path.c_str(), entry.link.data(), entry.link.size());
      if (length < 0) return errno_error(pending.path, errno);
      entry.link.resize(static_cast<std::size_t>(length));
      break;
    }
    case S_IFCHR:
    case S_IFBLK:
      entry.type = S_ISCHR(info.st_mode) ? '3' : '4';
      entry.device_major = major(info.st_rdev);
      entry.device_minor = minor(info.st_rdev);
      break;
    case S_IFIFO:
      entry.type = '6';
      break;
    case S_IFREG:
      entry.type = '0';
      break;
    default:
      return {};  // a socket
  }
  if (entry.type != '5' && info.st_nlink > 1) {
    const auto [known, fresh] = inodes_.try_emplace({info.st_dev, info.st_ino}, entry.name);
    if (!fresh) {
      entry.type = '1';
      entry.link = known->second;
    }
  }
  if (entry.type == '0') {
    auto opened = sys::open_at(AT_FDCWD, pending.path, O_RDONLY | O_NOFOLLOW);
    if (!opened.ok()) return std::move(opened).within(pending.path).error();
    file_ = std::move(opened).value();
    if (::fstat(file_.get(), &info) != 0) return errno_error(pending.path, errno);
    entry.size = file_left_ = file_size_ = static_cast<std::uint64_t>(info.st_size);
    file_name_ = pending.path;
  }
  out += tar_header(entry);
  return {};
}

Result<std::string> TarWriter::next() {
  std::string out;
  while (out.size() < kPart && !ended_) {
    if (file_) {
      if (file_left_ == 0) {
        out.append(tar_padding(file_size_), '\0');
        file_.reset();
        continue;
      }
      const std::size_t have = out.size();
      const auto want = static_cast<std::size_t>(std::min<std::uint64_t>(kPart, file_left_));
      out.resize(have + want);
      const ssize_t got = ::read(file_.get(), out.data() + have, want);
      if (got < 0) return errno_error(file_name_, errno);
      if (got == 0) return Error(ErrorCode::kConflict, file_name_ + " was cut short while it was read");
      out.resize(have + static_cast<std::size_t>(got));
      file_left_ -= static_cast<std::uint64_t>(got);
      content_bytes_ += static_cast<std::uint64_t>(got);
    } else if (!stack_.empty()) {
      const Pending pending = std::move(stack_.back());
      stack_.pop_back();
      DSEC_TRY(add(pending, out));
    } else {
      out += tar_end();
      ended_ = true;
    }
  }
  return out;
}

}  // namespace dsec::cli
