// What may pass between a client and a port of a sandbox. Pure functions.
//
// The traffic is hostile both ways: no credential of a client may reach a
// sandbox, and nothing that a sandbox answers may act with the rights of the
// API's origin in a browser.
#pragma once

#include "base/result.h"
#include "net/exchange.h"

namespace dsec::net {

enum class PortAddress {
  kPath,  // /v1/sandboxes/{id}/ports/{port}/…: for programs, on the API's own origin
  kHost,  // {port}-{id}.domain: for browsers, on an origin of its own
};

// kPermissionDenied for a browser's navigation by path.
Result<void> check_port_request(const HttpRequest& request, PortAddress address);
// Hop-by-hop headers and credentials removed; Host replaced by `host`.
HeaderList headers_into_sandbox(const HttpRequest& request, const std::string& host);
HeaderList headers_out_of_sandbox(const HeaderList& headers, PortAddress address);
// Also the names that Connection lists. Framing headers count among them.
bool is_hop_by_hop(std::string_view name, const HeaderList& headers);

}  // namespace dsec::net
