#include "edge/service_detect.h"

#include <netdb.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdlib>
#include <sstream>

#include "edge/egress_resolver.h"
#include "sys/file.h"

namespace dsec::edge {
namespace {

constexpr std::size_t kMaxCertificateBytes = 1 << 20;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty()) out.push_back(line);
  }
  return out;
}

std::string last_line(const std::string& text) {
  const std::vector<std::string> lines = lines_of(text);
  return lines.empty() ? "" : lines.back();
}

// The certificates of a bundle, which may hold the node's own key beside them.
std::string certificates_of(const std::string& pem) {
  constexpr std::string_view kBegin = "-----BEGIN CERTIFICATE-----", kEnd = "-----END CERTIFICATE-----";
  std::string out;
  for (std::size_t at = pem.find(kBegin); at != std::string::npos; at = pem.find(kBegin, at)) {
    const std::size_t end = pem.find(kEnd, at);
    if (end == std::string::npos) break;
    out += pem.substr(at, end + kEnd.size() - at) + "\n";
    at = end;
  }
  return out;
}

// One service in the making.
class Draft {
 public:
  Draft(std::string name, std::string source, ServiceDetection& into, const DetectSurroundings& surroundings)
      : into_(into), surroundings_(surroundings) {
    service_.name = std::move(name);
    service_.source = std::move(source);
  }

  void note(const std::string& text) { into_.notes.push_back(service_.name + ": " + text); }
  // Adds the URL's host; the URL without its credentials comes back.
  std::string add_url(const std::string& text) {
    Result<Url> url = parse_url(text);
    if (!url.ok()) {
      note(url.error().message());
      return "";
    }
    if (url->had_user) note("the credentials of " + url->host + " stay on the node");
    add_host(url->host, url->port);
    return url->text;
  }
  void add_host(const std::string& host, std::uint16_t port) {
    if (std::ranges::any_of(service_.hosts, [&](const model::ServiceHost& one) { return one.host == host && one.port == port; })) return;
    model::ServiceHost out{.host = host, .port = port};
    if (!parse_address(host)) {
      for (const IpAddress& address : surroundings_.addresses(host)) {
        const std::optional<std::string> kind = special_kind(address);
        // The host may be a server's word and not the operator's configuration.
        if (kind == "link-local" || kind == "node metadata")
          note(host + " is at " + address.text() + ", a " + *kind + " address: name it in a service of your own if you mean it");
        else if (kind)
          out.addresses.push_back(address.text());
      }
    }
    service_.hosts.push_back(std::move(out));
  }
  void set(const std::string& variable, std::string value) {
    if (!value.empty()) service_.env[variable] = std::move(value);
  }
  // The bundle that the client trusts, and the variables that point the client inside at it.
  void trust(const std::string& path, std::initializer_list<const char*> variables) {
    if (path.empty()) return;
    const Result<std::string> pem = surroundings_.file(path);
    std::string certificates = pem.ok() ? certificates_of(*pem) : "";
    if (certificates.empty() || certificates.size() > kMaxCertificateBytes) {
      note("no certificates in " + path);
      return;
    }
    service_.ca_certificates = std::move(certificates);
    for (const char* variable : variables) service_.env[variable] = model::kServiceCaPath;
  }
  // The first that is set is the parent proxy.
  void through(std::initializer_list<std::string> candidates) {
    for (const std::string& candidate : candidates) {
      if (candidate.empty() || candidate == "null" || candidate == "undefined") continue;
      Result<Url> url = parse_url(candidate.find("://") == std::string::npos ? "http://" + candidate : candidate);
      if (!url.ok() || url->scheme != "http" || url->had_user) {
        note("a parent proxy that this node cannot go through for sandboxes (" + std::string(url.ok() ? url->host : "malformed") + ")");
        return;
      }
      service_.via = url->host + ":" + std::to_string(url->port);
      return;
    }
  }
  std::string variable(const std::string& name) const { return surroundings_.variable(name); }

  void finish() {
    if (service_.hosts.empty()) {
      note("no host found");
      return;
    }
    Result<model::ServiceDefinition> valid = model::validate(std::move(service_));
    if (!valid.ok()) {
      note(valid.error().message());
      return;
    }
    into_.services.push_back(*std::move(valid));
  }

 private:
  model::ServiceDefinition service_;
  ServiceDetection& into_;
  const DetectSurroundings& surroundings_;
};

// "global.index-url='https://…'", ":env:.cert='…'": what stands behind any section.
std::string pip_setting(const std::vector<std::string>& lines, const std::string& key) {
  std::string out;
  for (const std::string& line : lines) {
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos || !line.substr(0, equals).ends_with("." + key)) continue;
    std::string value = line.substr(equals + 1);
    if (value.size() >= 2 && (value.front() == '\'' || value.front() == '"') && value.back() == value.front()) value = value.substr(1, value.size() - 2);
    if (out.empty() || line.starts_with(":env:")) out = value;  // the environment wins
  }
  return out;
}

void detect_pip(ClientRunner& clients, const DetectSurroundings& surroundings, ServiceDetection& into) {
  Draft draft("pypi", "pip config list", into, surroundings);
  std::vector<std::string> pip = {"pip"};
  Result<std::string> config = clients.run({"pip", "config", "list"});
  if (!config.ok()) {
    pip = {"python3", "-m", "pip"};
    config = clients.run({"python3", "-m", "pip", "config", "list"});
  }
  if (!config.ok()) return draft.note(config.error().message());
  const std::vector<std::string> lines = lines_of(*config);
  std::string index = pip_setting(lines, "index-url");
  const auto with = [&pip](std::initializer_list<const char*> more) {
    std::vector<std::string> argv = pip;
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  };
  if (index.empty()) {
    // Not configured: pip's help prints its own default.
    if (const Result<std::string> help = clients.run(with({"download", "--help"})); help.ok()) {
      std::string flat = *help;
      std::ranges::replace(flat, '\n', ' ');
      const std::size_t option = flat.find("--index-url");
      const std::size_t at = flat.find("(default ", option);
      const std::size_t url = option == std::string::npos || at == std::string::npos ? std::string::npos : flat.find("http", at);
      if (url != std::string::npos) index = flat.substr(url, flat.find_first_of(") ", url) - url);
    }
  }
  if (index.empty()) return draft.note("no index is configured, and pip does not say its default");
  draft.set("PIP_INDEX_URL", draft.add_url(index));
  std::istringstream extras(pip_setting(lines, "extra-index-url"));
  std::string kept;
  for (std::string extra; extras >> extra;) kept += (kept.empty() ? "" : " ") + draft.add_url(extra);
  draft.set("PIP_EXTRA_INDEX_URL", kept);
  const std::string cert = pip_setting(lines, "cert");
  draft.trust(!cert.empty() ? cert : draft.variable("REQUESTS_CA_BUNDLE"), {"PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"});
  draft.through({pip_setting(lines, "proxy"), draft.variable("https_proxy"), draft.variable("HTTPS_PROXY")});
  // Where the files lie is the index's word: pip finds out, for one package.
  const Result<std::string> report =
      clients.run(with({"--quiet", "--no-input", "--disable-pip-version-check", "install", "--dry-run", "--no-deps", "--ignore-installed", "--report", "-", "pip"}));
  boost::system::error_code malformed;
  const boost::json::value parsed = report.ok() ? boost::json::parse(*report, malformed) : boost::json::value();
  boost::system::error_code absent;
  const boost::json::value* url = malformed ? nullptr : parsed.find_pointer("/install/0/download_info/url", absent);
  if (url == nullptr || !url->is_string())
    draft.note("pip could not say where the index keeps its files" + (report.ok() ? std::string() : " (" + report.error().message() + ")"));
  else
    draft.add_url(std::string(url->get_string()));
  draft.finish();
}

void detect_npm(ClientRunner& clients, const DetectSurroundings& surroundings, ServiceDetection& into) {
  Draft draft("npm", "npm config get registry", into, surroundings);
  const Result<std::string> registry = clients.run({"npm", "config", "get", "registry"});
  if (!registry.ok()) return draft.note(registry.error().message());
  draft.set("NPM_CONFIG_REGISTRY", draft.add_url(last_line(*registry)));
  const auto setting = [&clients](const char* key) {
    const Result<std::string> value = clients.run({"npm", "config", "get", key});
    const std::string text = value.ok() ? last_line(*value) : "";
    return text == "null" || text == "undefined" ? "" : text;
  };
  const std::string cafile = setting("cafile");
  draft.trust(!cafile.empty() ? cafile : draft.variable("NODE_EXTRA_CA_CERTS"), {"NPM_CONFIG_CAFILE", "NODE_EXTRA_CA_CERTS"});
  draft.through({setting("https-proxy"), setting("proxy"), draft.variable("https_proxy"), draft.variable("HTTPS_PROXY")});
  if (const Result<std::string> tarball = clients.run({"npm", "view", "npm", "dist.tarball"}); tarball.ok() && last_line(*tarball).starts_with("http"))
    draft.add_url(last_line(*tarball));
  else
    draft.note("npm could not say where the registry keeps its files");
  draft.finish();
}

void detect_go(ClientRunner& clients, const DetectSurroundings& surroundings, ServiceDetection& into) {
  Draft draft("go", "go env GOPROXY GOSUMDB", into, surroundings);
  const Result<std::string> proxies = clients.run({"go", "env", "GOPROXY"});
  if (!proxies.ok()) return draft.note(proxies.error().message());
  std::string kept;
  std::string list = last_line(*proxies);
  std::ranges::replace(list, '|', ',');
  std::istringstream stream(list);
  for (std::string one; std::getline(stream, one, ',');) {
    if (one.empty() || one == "direct" || one == "off") continue;
    kept += (kept.empty() ? "" : ",") + draft.add_url(one);
  }
  draft.set("GOPROXY", kept);
  // "sum.example", "sum.example+key", "sum.example+key https://mirror": the name is a host.
  const Result<std::string> sumdb = clients.run({"go", "env", "GOSUMDB"});
  if (const std::string text = sumdb.ok() ? last_line(*sumdb) : ""; !text.empty() && text != "off") {
    if (const std::size_t space = text.find(' '); space != std::string::npos) {
      const std::string mirror = draft.add_url(text.substr(space + 1));
      draft.set("GOSUMDB", text.substr(0, space + 1) + mirror);
    } else {
      draft.set("GOSUMDB", text);
      draft.add_url("https://" + text.substr(0, text.find('+')));
    }
  }
  draft.trust(draft.variable("SSL_CERT_FILE"), {"SSL_CERT_FILE"});
  draft.through({draft.variable("https_proxy"), draft.variable("HTTPS_PROXY")});
  draft.finish();
}

// The sites of the node's own release: other vendors' sources are not Debian.
void detect_apt(ClientRunner& clients, const DetectSurroundings& surroundings, ServiceDetection& into) {
  Draft draft("debian", "apt-get indextargets", into, surroundings);
  const Result<std::string> release = surroundings.file("/etc/os-release");
  std::string codename;
  for (const std::string& line : release.ok() ? lines_of(*release) : std::vector<std::string>())
    if (line.starts_with("VERSION_CODENAME=")) codename = line.substr(17);
  const Result<std::string> targets = clients.run({"apt-get", "indextargets", "--format", "$(RELEASE) $(SITE)"});
  if (!targets.ok()) return draft.note(targets.error().message());
  for (const std::string& line : lines_of(*targets)) {
    const std::size_t space = line.find(' ');
    const std::string suite = line.substr(0, space);
    if (space == std::string::npos || codename.empty() || !(suite == codename || suite.starts_with(codename + "-"))) continue;
    const std::string site = line.substr(space + 1);
    if (site.starts_with("http")) draft.add_url(site);
  }
  std::string proxy;
  if (const Result<std::string> dump = clients.run({"apt-config", "--format", "%v%n", "dump", "Acquire::http::Proxy"}); dump.ok()) proxy = last_line(*dump);
  draft.through({proxy, draft.variable("http_proxy")});
  draft.finish();
}

}  // namespace

Result<Url> parse_url(std::string_view text) {
  const Error malformed = invalid_argument("not an http or https URL");
  Url url;
  const std::size_t colon = text.find("://");
  if (colon == std::string_view::npos) return malformed;
  url.scheme = std::string(text.substr(0, colon));
  if (url.scheme != "http" && url.scheme != "https") return malformed;
  std::string_view rest = text.substr(colon + 3);
  const std::size_t end = rest.find_first_of("/?#");
  std::string_view place = rest.substr(0, end);
  const std::string_view path = end == std::string_view::npos ? "" : rest.substr(end);
  if (const std::size_t at = place.rfind('@'); at != std::string_view::npos) {
    url.had_user = true;
    place.remove_prefix(at + 1);
  }
  url.text = url.scheme + "://" + std::string(place) + std::string(path);
  url.port = url.scheme == "https" ? 443 : 80;
  const std::size_t bracket = place.rfind(']');
  const std::size_t port_at = place.find(':', bracket == std::string_view::npos ? 0 : bracket);
  std::string_view host = place.substr(0, port_at);
  if (port_at != std::string_view::npos) {
    const std::string digits(place.substr(port_at + 1));
    if (digits.empty() || digits.size() > 5 || !std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; }) || std::stoi(digits) > 65535)
      return malformed;
    url.port = static_cast<std::uint16_t>(std::stoi(digits));
  }
  if (const auto address = parse_address(host)) {
    url.host = address->text();
  } else {
    DSEC_ASSIGN(url.host, model::normal_host_name(host));
  }
  return url;
}

DetectSurroundings node_surroundings() {
  return {
      .variable = [](const std::string& name) {
        const char* value = std::getenv(name.c_str());
        return std::string(value == nullptr ? "" : value);
      },
      .file = [](const std::string& path) { return sys::read_file(path, kMaxCertificateBytes); },
      .addresses = [](const std::string& host) {
        Result<std::vector<IpAddress>> found = look_up_on_host(host);
        return found.ok() ? *std::move(found) : std::vector<IpAddress>();
      },
  };
}

ServiceDetection detect_services(ClientRunner& clients, const DetectSurroundings& surroundings) {
  ServiceDetection out;
  detect_pip(clients, surroundings, out);
  detect_npm(clients, surroundings, out);
  detect_go(clients, surroundings, out);
  detect_apt(clients, surroundings, out);
  return out;
}

}  // namespace dsec::edge
