// Whose request is this: the API's, a sandbox port's, or one that a foreign page
// made. Pure functions.
//
// A browser sends what a page tells it to, with the page's origin. A name that an
// attacker's DNS points at 127.0.0.1 arrives with that name as Host; a page of
// another site arrives with its Origin. Neither has business here.
#pragma once

#include <string>

#include "base/result.h"
#include "net/exchange.h"

namespace dsec::apiserver {

struct Addressee {
  bool port = false;  // {port}-{id}.domain
  std::string sandbox_id;
  std::uint16_t port_number = 0;
};

struct HostRules {
  std::string listen_address = "127.0.0.1";
  std::string port_domain = "localhost";  // of {port}-{id}.<domain>
  std::vector<std::string> names;         // further names of this server
};

// kPermissionDenied for a foreign Host or Origin.
Result<Addressee> addressee_of(const net::HttpRequest& request, const HostRules& rules);

}  // namespace dsec::apiserver
