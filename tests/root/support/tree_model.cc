#include "root/support/tree_model.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>

namespace dsec {

namespace {

constexpr std::size_t kBlock = 4096;

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::string read_whole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return "<cannot be read>";
  return {std::istreambuf_iterator<char>(in), {}};
}

std::map<std::string, std::string> attributes_of(const std::string& path) {
  std::map<std::string, std::string> out;
  std::string names(65536, '\0');
  const ssize_t size = ::llistxattr(path.c_str(), names.data(), names.size());
  for (ssize_t at = 0; at < size;) {
    const std::string name = names.c_str() + at;
    std::string value(65536, '\0');
    const ssize_t length = ::lgetxattr(path.c_str(), name.c_str(), value.data(), value.size());
    out[name] = length < 0 ? "<cannot be read>" : value.substr(0, static_cast<std::size_t>(length));
    at += static_cast<ssize_t>(name.size()) + 1;
  }
  return out;
}

std::set<std::string> paths_below(const std::string& root) {
  std::set<std::string> out;
  std::vector<std::string> open = {""};
  while (!open.empty()) {
    const std::string at = open.back();
    open.pop_back();
    out.insert(at);
    DIR* stream = ::opendir((root + "/" + at).c_str());
    if (stream == nullptr) continue;
    while (const dirent* entry = ::readdir(stream)) {
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      const std::string path = at.empty() ? name : at + "/" + name;
      out.insert(path);
      struct stat st{};
      if (::lstat((root + "/" + path).c_str(), &st) == 0 && S_ISDIR(st.st_mode)) open.push_back(path);
    }
    ::closedir(stream);
  }
  return out;
}

std::string link_target(const std::string& path) {
  std::string out(8192, '\0');
  const ssize_t n = ::readlink(path.c_str(), out.data(), out.size());
  return out.substr(0, n < 0 ? 0 : static_cast<std::size_t>(n));
}

Result<void> give_content(erofs::EntrySink& sink, const ModelFile& file) {
  for (std::size_t at = 0; at < file.content.size();) {
    const std::size_t part = std::min(kBlock - at % kBlock, file.content.size() - at);
    if (file.holes.contains(at / kBlock)) {
      DSEC_TRY(sink.skip(part));
    } else {
      DSEC_TRY(sink.write(std::string_view(file.content).substr(at, part)));
    }
    at += part;
  }
  return sink.finish_file();
}

}  // namespace

TreeModel::TreeModel() { directory("", {.mode = 0755}); }

void TreeModel::directory(const std::string& path, erofs::EntryMeta meta) {
  files[path] = std::make_shared<ModelFile>(ModelFile{.mode = S_IFDIR | meta.mode, .meta = std::move(meta)});
}
std::shared_ptr<ModelFile> TreeModel::file(const std::string& path, std::string content, erofs::EntryMeta meta) {
  return files[path] = std::make_shared<ModelFile>(ModelFile{.mode = S_IFREG | meta.mode, .meta = std::move(meta), .content = std::move(content)});
}
void TreeModel::symlink(const std::string& path, const std::string& target, erofs::EntryMeta meta) {
  files[path] = std::make_shared<ModelFile>(ModelFile{.mode = S_IFLNK | 0777, .meta = std::move(meta), .content = target});
}
void TreeModel::fifo(const std::string& path, erofs::EntryMeta meta) {
  files[path] = std::make_shared<ModelFile>(ModelFile{.mode = S_IFIFO | meta.mode, .meta = std::move(meta)});
}

TreeModel TreeModel::random(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  TreeModel out;
  std::vector<std::string> directories = {""};
  std::vector<std::string> contents;
  std::vector<std::string> plain;
  const auto meta = [&] {
    erofs::EntryMeta made{.mode = static_cast<mode_t>(below(010000)), .uid = static_cast<std::uint32_t>(below(3) == 0 ? random() % 0xFFFFFFFF : below(5)), .gid = static_cast<std::uint32_t>(below(70000)),
                          .mtime_seconds = static_cast<std::int64_t>(below(1LL << 33)), .mtime_nanoseconds = static_cast<std::int64_t>(below(1'000'000'000))};
    for (std::uint64_t i = below(12) == 0 ? 1 + below(4) : 0; i != 0; i--) made.attributes.emplace_back("user.a" + std::to_string(i), std::string(below(900), static_cast<char>('a' + i)));
    std::sort(made.attributes.begin(), made.attributes.end());
    return made;
  };
  const auto bytes = [&](std::size_t size) {
    std::string made(size, '\0');
    const bool dull = below(2) == 0;  // what compresses, and what does not
    for (char& byte : made) byte = static_cast<char>(dull ? 'a' + below(3) : random());
    return made;
  };
  static constexpr std::size_t kSizes[] = {0, 1, 2047, 2048, 2049, 4095, 4096, 4097, 8192, 65535, 65536, 65537, 200'000};
  for (int i = 0; i < 400; i++) {
    const std::string parent = directories[below(directories.size())];
    std::string name = "n" + std::to_string(i);
    if (below(10) == 0) name = "." + name;
    if (below(20) == 0) name = "!" + name + std::string(200, static_cast<char>(1 + below(40)));
    std::replace(name.begin(), name.end(), '/', '_');
    const std::string path = parent.empty() ? name : parent + "/" + name;
    switch (below(10)) {
      case 0:
      case 1: out.directory(path, meta()); directories.push_back(path); break;
      case 2: out.symlink(path, std::string(1 + below(300), 't'), {.uid = 7, .mtime_seconds = 5}); break;
      case 3: out.fifo(path, {.mode = 0640, .mtime_seconds = 9}); break;
      case 4:
        if (!plain.empty()) out.link(path, plain[below(plain.size())]);
        break;
      case 5: {
        auto made = out.file(path, bytes(below(40) * 1000 + 1), meta());
        for (std::size_t block = 0; block * kBlock < made->content.size(); block++) {
          if (below(2) == 0) continue;
          made->holes.insert(block);
          std::fill_n(made->content.begin() + static_cast<std::ptrdiff_t>(block * kBlock), std::min(kBlock, made->content.size() - block * kBlock), '\0');
        }
        break;
      }
      default:
        if (contents.empty() || below(4) != 0) contents.push_back(bytes(below(3) == 0 ? below(9000) : kSizes[below(std::size(kSizes))]));
        out.file(path, contents[below(contents.size())], meta());
        plain.push_back(path);
    }
  }
  return out;
}

Result<void> TreeModel::give_to(erofs::EntrySink& sink) const {
  std::map<const ModelFile*, std::string> given;
  for (const auto& [path, file] : files) {
    if (const auto first = given.find(file.get()); first != given.end()) {
      DSEC_TRY(sink.make_hard_link(path, first->second));
      continue;
    }
    given[file.get()] = path;
    switch (file->mode & S_IFMT) {
      case S_IFDIR: DSEC_TRY(sink.make_directory(path, file->meta)); break;
      case S_IFLNK: DSEC_TRY(sink.make_symlink(path, file->content, file->meta)); break;
      case S_IFIFO: DSEC_TRY(sink.make_fifo(path, file->meta)); break;
      default:
        DSEC_TRY(sink.begin_file(path, file->meta, {.bytes = file->content.size(), .sparse = !file->holes.empty()}));
        DSEC_TRY(give_content(sink, *file));
    }
  }
  return {};
}

std::string TreeModel::compare(const std::string& root) const {
  std::map<const ModelFile*, nlink_t> links;
  std::map<const ModelFile*, ino_t> numbers;
  for (const auto& [path, file] : files) {
    links[file.get()] += S_ISDIR(file->mode) ? 2 : 1;
    if (S_ISDIR(file->mode) && !path.empty()) links[files.at(parent_of(path)).get()]++;
  }
  const std::set<std::string> found = paths_below(root);
  std::string out;
  const auto differs = [&](const std::string& path, const std::string& what) { out += path + ": " + what + "\n"; };
  for (const std::string& path : found) {
    if (!files.contains(path)) differs(path, "too much");
  }
  for (const auto& [path, file] : files) {
    const std::string real = root + "/" + path;
    struct stat st{};
    if (!found.contains(path) || ::lstat(real.c_str(), &st) != 0) {
      differs(path, "missing");
      continue;
    }
    if (st.st_mode != file->mode) differs(path, "mode " + std::to_string(st.st_mode));
    if (st.st_uid != file->meta.uid || st.st_gid != file->meta.gid) differs(path, "owner");
    if (st.st_mtim.tv_sec != file->meta.mtime_seconds || st.st_mtim.tv_nsec != file->meta.mtime_nanoseconds) differs(path, "time");
    if (st.st_nlink != links[file.get()]) differs(path, "links " + std::to_string(st.st_nlink));
    if (!numbers.emplace(file.get(), st.st_ino).second && numbers[file.get()] != st.st_ino) differs(path, "another inode");
    std::map<std::string, std::string> attributes = file->marks;
    attributes.insert(file->meta.attributes.begin(), file->meta.attributes.end());
    if (attributes_of(real) != attributes) differs(path, "attributes");
    if (S_ISLNK(file->mode) && link_target(real) != file->content) differs(path, "target");
    if (S_ISREG(file->mode) && static_cast<std::size_t>(st.st_size) != file->content.size()) differs(path, "size");
    if (S_ISREG(file->mode) && read_whole(real) != file->content) differs(path, "content");
  }
  std::set<ino_t> inodes;
  for (const auto& [file, number] : numbers) inodes.insert(number);
  if (inodes.size() != numbers.size()) out += "two files share an inode\n";
  return out;
}

std::map<std::string, std::string> listing(const std::string& root) {
  std::map<std::string, std::string> out;
  for (const std::string& path : paths_below(root)) {
    const std::string real = root + "/" + path;
    struct stat st{};
    if (::lstat(real.c_str(), &st) != 0) {
      out[path] = "a ghost";
      continue;
    }
    std::string& text = out[path] = std::to_string(st.st_mode) + " " + std::to_string(st.st_uid) + " ";
    if (S_ISREG(st.st_mode)) text += read_whole(real);
    if (S_ISLNK(st.st_mode)) text += link_target(real);
    for (const auto& [name, value] : attributes_of(real)) text += " " + name + "=" + value;
  }
  return out;
}

}  // namespace dsec
