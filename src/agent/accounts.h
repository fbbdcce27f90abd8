// Users and groups, read from the sandbox's own /etc/passwd and /etc/group.
//
// The files belong to the payload and may hold anything: they are read only when
// they are regular, only up to a size, and a line that is not well formed is
// skipped. No name service is asked.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace dsec::agent {

struct Account {
  std::string name;  // "" when the number has none
  uid_t uid = 0;
  gid_t gid = 0;
  std::string home = "/";
  std::string shell = "/bin/sh";
  std::vector<gid_t> groups;  // supplementary
};

struct PasswdLine {
  std::string_view name;
  uid_t uid = 0;
  gid_t gid = 0;
  std::string_view home;
  std::string_view shell;
};
struct GroupLine {
  std::string_view name;
  gid_t gid = 0;
  std::string_view members;  // separated by commas
};
std::optional<PasswdLine> parse_passwd_line(std::string_view line);
std::optional<GroupLine> parse_group_line(std::string_view line);

// `request` is ExecStart.user: "" = root. Pure: the two texts are the files.
Result<Account> find_account(std::string_view request, std::string_view passwd, std::string_view group);

// A small file of the sandbox, "" when it is absent, no regular file or past 1 MiB.
std::string read_account_file(const char* path);

// The names of ids, for listings.
class IdNames {
 public:
  IdNames();
  std::string user(uid_t uid) const;
  std::string group(gid_t gid) const;

 private:
  std::string passwd_;
  std::string group_;
};

}  // namespace dsec::agent
