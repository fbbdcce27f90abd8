// Archives for tests, written header by header so that they can be wrong.
#pragma once

#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

namespace dsec::image {

struct TarMember {
  std::string name;
  char type = '0';
  std::string data = {};
  std::string link = {};
  unsigned mode = 0644;
  unsigned uid = 0;
  unsigned gid = 0;
  long long mtime = 1'700'000'000;
  long long claimed_size = -1;  // -1 = the data's
};

class TarFixture {
 public:
  TarFixture& add(const TarMember& member) {
    const bool carries = member.type == '0' || member.type == 'x' || member.type == 'g' || member.type == 'L' || member.type == 'K' || member.type == 'S';
    const long long size = member.claimed_size >= 0 ? member.claimed_size : carries ? static_cast<long long>(member.data.size()) : 0;
    char block[512] = {};
    std::strncpy(block, member.name.c_str(), 100);
    octal(block + 100, 8, member.mode);
    octal(block + 108, 8, member.uid);
    octal(block + 116, 8, member.gid);
    octal(block + 124, 12, static_cast<unsigned long long>(size));
    octal(block + 136, 12, static_cast<unsigned long long>(member.mtime));
    block[156] = member.type;
    std::strncpy(block + 157, member.link.c_str(), 100);
    std::memcpy(block + 257, "ustar\00000", 8);
    octal(block + 329, 8, 8);
    octal(block + 337, 8, 1);
    std::memset(block + 148, ' ', 8);
    unsigned sum = 0;
    for (const char byte : block) sum += static_cast<unsigned char>(byte);
    std::snprintf(block + 148, 8, "%06o", sum);
    bytes_.append(block, sizeof block);
    bytes_ += member.data;
    bytes_.append((512 - member.data.size() % 512) % 512, '\0');
    return *this;
  }
  TarFixture& directory(const std::string& name, unsigned mode = 0755) { return add({.name = name, .type = '5', .mode = mode}); }
  TarFixture& file(const std::string& name, const std::string& data, unsigned mode = 0644) { return add({.name = name, .data = data, .mode = mode}); }
  TarFixture& symlink(const std::string& name, const std::string& target) { return add({.name = name, .type = '2', .link = target, .mode = 0777}); }
  TarFixture& hard_link(const std::string& name, const std::string& target) { return add({.name = name, .type = '1', .link = target}); }
  // One pax record for the next member.
  TarFixture& pax(const std::string& key, const std::string& value) {
    std::size_t length = key.size() + value.size() + 3;
    while (std::to_string(length).size() + key.size() + value.size() + 3 != length) length = std::to_string(length).size() + key.size() + value.size() + 3;
    return add({.name = "pax", .type = 'x', .data = std::to_string(length) + " " + key + "=" + value + "\n"});
  }
  TarFixture& long_name(const std::string& name) { return add({.name = "././@LongLink", .type = 'L', .data = name + std::string(1, '\0')}); }

  // With the end mark.
  std::string finished() const { return bytes_ + std::string(1024, '\0'); }
  const std::string& unfinished() const { return bytes_; }

 private:
  static void octal(char* out, int width, unsigned long long value) { std::snprintf(out, static_cast<std::size_t>(width), "%0*llo", width - 1, value); }
  std::string bytes_;
};

}  // namespace dsec::image
