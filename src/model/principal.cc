#include "model/principal.h"

namespace dsec::model {

std::string_view to_string(Role role) {
  switch (role) {
    case Role::kViewer: return "viewer";
    case Role::kRuntime: return "runtime";
    case Role::kBuilder: return "builder";
    case Role::kAdmin: return "admin";
  }
  return "viewer";
}

Result<Role> parse_role(std::string_view text) {
  for (const Role role : {Role::kViewer, Role::kRuntime, Role::kBuilder, Role::kAdmin})
    if (text == to_string(role)) return role;
  return invalid_argument("role: viewer, runtime, builder or admin");
}

}  // namespace dsec::model
