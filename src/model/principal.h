// Who calls: what the apiserver found out about a key.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace dsec::model {

// Of its project, a viewer looks; a runtime key makes and uses sandboxes; a builder
// also decides what they are made of; an admin makes keys. The default project's
// admin is the node's operator, who also defines services and projects.
// The numbers are those of the store.
enum class Role { kViewer = 0, kRuntime = 3, kBuilder = 1, kAdmin = 2 };
std::string_view to_string(Role role);
Result<Role> parse_role(std::string_view text);

struct Principal {
  std::string project = "default";
  std::string key_id;  // names the key in audit records; never the key itself
  Role role = Role::kRuntime;

  bool builds() const { return role == Role::kBuilder || role == Role::kAdmin; }
};

}  // namespace dsec::model
