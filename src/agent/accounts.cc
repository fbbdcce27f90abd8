#include "agent/accounts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "sys/fd.h"

namespace dsec::agent {
namespace {

constexpr std::size_t kFileLimit = 1 << 20;
constexpr std::size_t kGroupLimit = 256;

std::optional<std::uint32_t> parse_id(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value == ~0u) return std::nullopt;
  return value;
}

std::string_view next_field(std::string_view& rest, char separator) {
  const std::size_t end = rest.find(separator);
  const std::string_view field = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
  return field;
}

template <typename Parse, typename Visit>
void each_line(std::string_view text, Parse parse, Visit visit) {
  while (!text.empty()) {
    if (const auto line = parse(next_field(text, '\n')); line && !visit(*line)) return;
  }
}

}  // namespace

std::optional<PasswdLine> parse_passwd_line(std::string_view line) {
  if (std::count(line.begin(), line.end(), ':') != 6) return std::nullopt;
  PasswdLine out;
  out.name = next_field(line, ':');
  next_field(line, ':');
  const auto uid = parse_id(next_field(line, ':'));
  const auto gid = parse_id(next_field(line, ':'));
  next_field(line, ':');
  out.home = next_field(line, ':');
  out.shell = line;
  if (out.name.empty() || !uid || !gid) return std::nullopt;
  out.uid = *uid;
  out.gid = *gid;
  return out;
}

std::optional<GroupLine> parse_group_line(std::string_view line) {
  if (std::count(line.begin(), line.end(), ':') != 3) return std::nullopt;
  GroupLine out;
  out.name = next_field(line, ':');
  next_field(line, ':');
  const auto gid = parse_id(next_field(line, ':'));
  out.members = line;
  if (out.name.empty() || !gid) return std::nullopt;
  out.gid = *gid;
  return out;
}

Result<Account> find_account(std::string_view request, std::string_view passwd, std::string_view group) {
  std::string_view rest = request;
  const bool with_group = request.find(':') != std::string_view::npos;
  std::string_view wanted_user = next_field(rest, ':');
  const std::string_view wanted_group = rest;
  if (wanted_user.empty()) wanted_user = "0";

  // A name first: "1000" may be one. A number without a line is a user too.
  std::optional<PasswdLine> found;
  const auto number = parse_id(wanted_user);
  each_line(passwd, parse_passwd_line, [&](const PasswdLine& line) {
    if (line.name == wanted_user) {
      found = line;
      return false;
    }
    if (number && line.uid == *number && !found) found = line;
    return true;
  });
  if (!found && !number) return Error(ErrorCode::kNotFound, "no user '" + std::string(wanted_user) + "' in /etc/passwd", ENOENT);

  Account account;
  if (found) {
    account.name = found->name;
    account.uid = found->uid;
    account.gid = found->gid;
    if (found->home.starts_with('/')) account.home = found->home;
    if (found->shell.starts_with('/')) account.shell = found->shell;
  } else {
    account.uid = *number;
    if (account.uid == 0) account.name = "root", account.home = "/root";
  }

  if (with_group) {
    const auto group_number = parse_id(wanted_group);
    std::optional<gid_t> gid = group_number;
    each_line(group, parse_group_line, [&](const GroupLine& line) {
      if (line.name != wanted_group) return true;
      gid = line.gid;
      return false;
    });
    if (!gid) return Error(ErrorCode::kNotFound, "no group '" + std::string(wanted_group) + "' in /etc/group", ENOENT);
    account.gid = *gid;
    account.groups = {account.gid};
    return account;
  }

  account.groups.push_back(account.gid);
  if (account.name.empty()) return account;
  each_line(group, parse_group_line, [&](const GroupLine& line) {
    std::string_view members = line.members;
    while (!members.empty()) {
      if (next_field(members, ',') != account.name) continue;
      if (std::find(account.groups.begin(), account.groups.end(), line.gid) == account.groups.end()) account.groups.push_back(line.gid);
      break;
    }
    return account.groups.size() < kGroupLimit;
  });
  return account;
}

std::string read_account_file(const char* path) {
  const sys::Fd fd(::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  if (status.st_size <= 0 || static_cast<std::size_t>(status.st_size) > kFileLimit) return {};
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = ::read(fd.get(), text.data() + have, text.size() - have);
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  text.resize(have);
  return text;
}

IdNames::IdNames() : passwd_(read_account_file("/etc/passwd")), group_(read_account_file("/etc/group")) {}

std::string IdNames::user(uid_t uid) const {
  std::string name;
  each_line(passwd_, parse_passwd_line, [&](const PasswdLine& line) {
    if (line.uid == uid) name = line.name;
    return name.empty();
  });
  return name;
}

std::string IdNames::group(gid_t gid) const {
  std::string name;
  each_line(group_, parse_group_line, [&](const GroupLine& line) {
    if (line.gid == gid) name = line.name;
    return name.empty();
  });
  return name;
}

}  // namespace dsec::agent
