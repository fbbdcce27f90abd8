// Who calls: what the apiserver found out about a key.
#pragma once

#include <string>

namespace dsec::model {

enum class Role { kViewer, kMember, kAdmin };  // admin of the node: may import shared layers, define services

struct Principal {
  std::string project = "default";
  std::string key_id;  // names the key in audit records; never the key itself
  Role role = Role::kMember;
};

}  // namespace dsec::model
