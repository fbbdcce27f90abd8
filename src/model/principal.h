// Who calls: what the apiserver found out about a key.
#pragma once

#include <string>

namespace dsec::model {

// An admin makes keys of its project; the default project's is the node's operator, who also defines services and projects.
enum class Role { kViewer, kMember, kAdmin };

struct Principal {
  std::string project = "default";
  std::string key_id;  // names the key in audit records; never the key itself
  Role role = Role::kMember;
};

}  // namespace dsec::model
