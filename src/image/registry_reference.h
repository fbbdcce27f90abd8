// What an image in a registry is called, and which registries the operator allows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace dsec::image {

// The registry is always said: a short name would be looked for wherever somebody has it.
struct RegistryReference {
  std::string host;        // lower case, with its port if one is said: "registry.example", "127.0.0.1:5000"
  std::string repository;  // "team/app"
  std::string tag;         // "latest" when nothing is said; "" with a digest
  std::string digest;      // "sha256:…" or ""

  std::string text() const;
};
// Without "docker://".
Result<RegistryReference> parse_registry_reference(std::string_view text);

struct AllowedRegistry {
  std::string host;  // a name or an IPv4 address
  std::uint16_t port = 443;
  bool plain_http = false;

  bool is_literal() const;
};
// HOST, HOST:PORT or http://HOST[:PORT], the last one for registries without TLS.
Result<AllowedRegistry> parse_allowed_registry(std::string_view text);
// The entry that lets this reference be asked for. kPermissionDenied: none does.
Result<AllowedRegistry> find_allowed(const std::vector<AllowedRegistry>& allowed, const RegistryReference& reference);

}  // namespace dsec::image
