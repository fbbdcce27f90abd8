// Services from the node's own package clients.
//
// pip, npm, go and apt are asked where they would go: by running them, with the
// node's configuration. So a node behind a mirror or a parent proxy gives its
// sandboxes the same way, and no registry's name stands in this program.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "edge/egress_policy.h"
#include "model/service.h"

namespace dsec::edge {

// Runs one client: argv, no shell, its first word looked up in PATH.
class ClientRunner {
 public:
  virtual ~ClientRunner() = default;
  // Standard output, at most 1 MiB. kNotFound when there is no such program,
  // kUnavailable when it fails, kDeadlineExceeded when it takes too long. Blocks.
  virtual Result<std::string> run(const std::vector<std::string>& argv) = 0;
};

class NodeClientRunner final : public ClientRunner {
 public:
  explicit NodeClientRunner(Duration limit = std::chrono::seconds(30)) : limit_(limit) {}
  Result<std::string> run(const std::vector<std::string>& argv) override;

 private:
  Duration limit_;
};

// The rest of the node that detection looks at.
struct DetectSurroundings {
  std::function<std::string(const std::string& name)> variable;                   // "" = not set
  std::function<Result<std::string>(const std::string& path)> file;
  std::function<std::vector<IpAddress>(const std::string& host)> addresses;       // none = cannot be resolved here
};
DetectSurroundings node_surroundings();

struct ServiceDetection {
  std::vector<model::ServiceDefinition> services;  // of "pypi", "npm", "go", "debian"
  std::vector<std::string> notes;                  // "npm: not installed"
};
// Blocks, for as long as the clients take.
ServiceDetection detect_services(ClientRunner& clients, const DetectSurroundings& surroundings);

struct Url {
  std::string scheme;
  std::string host;
  std::uint16_t port = 0;
  std::string text;  // without user and password
  bool had_user = false;
};
Result<Url> parse_url(std::string_view text);

}  // namespace dsec::edge
