#include "image/debian_builder.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <sstream>

#include "image/child_program.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

constexpr std::size_t kSourcesLimit = 1 << 20;
constexpr std::size_t kMostPackages = 2000;
constexpr std::size_t kLogLimit = 64 << 20;
// The rest of the node's apt configuration is about the node.
constexpr std::string_view kCarriedOptions[] = {"Acquire::http::Proxy", "Acquire::https::Proxy", "Acquire::Check-Valid-Until", "Acquire::Check-Date",
                                                "Acquire::Retries",     "Acquire::http::Timeout", "Acquire::https::Timeout"};

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> out;
  for (std::string word; stream >> word;) out.push_back(word);
  return out;
}

// "bookworm-security" of node "bookworm" for "trixie" -> "trixie-security"; "" = leave out.
std::string turned(const std::string& release, std::string_view node_suite, std::string_view suite) {
  const bool rolling = suite == "sid" || suite == "unstable";
  for (const std::string_view known : {node_suite, suite}) {
    if (known.empty() || !release.starts_with(known)) continue;
    const std::string_view rest = std::string_view(release).substr(known.size());
    if (rest.empty()) return std::string(suite);
    if ((rest == "-updates" || rest == "-security") && !rolling) return std::string(suite) + std::string(rest);
  }
  return "";
}

struct Source {
  std::vector<std::string> uris;
  std::vector<std::string> releases;
  std::vector<std::string> components;
  std::string signed_by;
};

// "deb [signed-by=/x arch=amd64] URI RELEASE COMPONENT…"
void parse_line(const std::string& line, std::vector<Source>& out) {
  std::vector<std::string> parts = words(line.substr(0, line.find('#')));
  if (parts.size() < 3 || parts[0] != "deb") return;
  Source source;
  std::size_t at = 1;
  if (parts[1].starts_with("[")) {
    for (bool open = true; open && at < parts.size(); at++) {
      std::string option = parts[at];
      if (option.ends_with("]")) {
        open = false;
        option.pop_back();
      }
      if (option.starts_with("[")) option.erase(0, 1);
      if (option.starts_with("signed-by=")) source.signed_by = option.substr(10);
    }
  }
  if (parts.size() < at + 2) return;
  source.uris = {parts[at]};
  source.releases = {parts[at + 1]};
  source.components.assign(parts.begin() + static_cast<std::ptrdiff_t>(at) + 2, parts.end());
  out.push_back(std::move(source));
}

void parse_stanza(const std::map<std::string, std::string>& fields, std::vector<Source>& out) {
  const auto field = [&](const char* name) {
    const auto found = fields.find(name);
    return found == fields.end() ? std::string() : found->second;
  };
  const std::vector<std::string> types = words(field("types"));
  if (std::find(types.begin(), types.end(), "deb") == types.end()) return;
  if (const std::string enabled = field("enabled"); enabled.find("no") != std::string::npos) return;
  Source source{words(field("uris")), words(field("suites")), words(field("components")), ""};
  const std::vector<std::string> keyring = words(field("signed-by"));
  // A key written out in the stanza cannot be one word of a line; apt's trusted keys must do then.
  if (keyring.size() == 1) source.signed_by = keyring[0];
  out.push_back(std::move(source));
}

void parse_text(const std::string& text, std::vector<Source>& out) {
  std::map<std::string, std::string> stanza;
  std::string last;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    if (words(line).empty()) {
      parse_stanza(stanza, out);
      stanza.clear();
      last.clear();
    } else if (line.starts_with("deb ") || line.starts_with("deb\t")) {
      parse_line(line, out);
    } else if ((line[0] == ' ' || line[0] == '\t') && !last.empty()) {
      stanza[last] += line;
    } else if (const std::size_t colon = line.find(':'); colon != std::string::npos) {
      last = line.substr(0, colon);
      std::transform(last.begin(), last.end(), last.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      stanza[last] = line.substr(colon + 1);
    }
  }
  parse_stanza(stanza, out);
}

std::vector<std::string> node_sources() {
  std::vector<std::string> texts;
  if (Result<std::string> text = sys::read_file("/etc/apt/sources.list", kSourcesLimit); text.ok()) texts.push_back(*text);
  std::set<std::string> names;
  if (DIR* stream = ::opendir("/etc/apt/sources.list.d")) {
    while (const dirent* entry = ::readdir(stream)) {
      const std::string name = entry->d_name;
      if (name.ends_with(".list") || name.ends_with(".sources")) names.insert(name);
    }
    ::closedir(stream);
  }
  for (const std::string& name : names) {
    if (Result<std::string> text = sys::read_file("/etc/apt/sources.list.d/" + name, kSourcesLimit); text.ok()) texts.push_back(*text);
  }
  return texts;
}

std::string node_suite() {
  const Result<std::string> release = sys::read_file("/etc/os-release", kSourcesLimit);
  if (!release.ok()) return "";
  std::istringstream lines(*release);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("VERSION_CODENAME=")) return line.substr(17);
  }
  return "";
}

// apt maps its caches, and a full filesystem kills who writes to a map.
bool ran_out_of_room(const std::string& log) {
  return log.find("No space left on device") != std::string::npos || log.find("Bus error") != std::string::npos;
}

Result<void> write_file(const std::string& path, const std::string& text) {
  DSEC_ASSIGN(const sys::Fd file, sys::open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0644));
  return sys::write_all(file.get(), text);
}

}  // namespace

Result<void> validate_debian_names(const std::string& suite, const std::vector<std::string>& packages) {
  const auto word = [](const std::string& text, std::string_view marks) {
    if (text.empty() || text.size() > 100) return false;
    const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
    return plain(text[0]) && std::all_of(text.begin(), text.end(), [&](char c) { return plain(c) || marks.find(c) != std::string_view::npos; });
  };
  if (!word(suite, "-.")) return invalid_argument("not a Debian suite: " + suite);
  if (packages.size() > kMostPackages) return invalid_argument("more than 2000 packages");
  for (const std::string& package : packages) {
    if (!word(package, "+-.")) return invalid_argument("not a Debian package: " + package);
  }
  return {};
}

std::string sources_for_suite(const std::vector<std::string>& texts, std::string_view node_release, std::string_view suite) {
  std::vector<Source> sources;
  for (const std::string& text : texts) parse_text(text, sources);
  std::string out;
  std::set<std::string> seen;
  for (const Source& source : sources) {
    for (const std::string& uri : source.uris) {
      for (const std::string& release : source.releases) {
        const std::string wanted = turned(release, node_release, suite);
        if (wanted.empty() || source.components.empty()) continue;
        std::string line = "deb ";
        if (!source.signed_by.empty()) line += "[signed-by=" + source.signed_by + "] ";
        line += uri + " " + wanted;
        for (const std::string& component : source.components) line += " " + component;
        if (seen.insert(line).second) out += line + "\n";
      }
    }
  }
  return out;
}

Result<void> build_debian(const std::string& suite, const std::vector<std::string>& packages, const std::string& place, const std::string& output) {
  DSEC_TRY(validate_debian_names(suite, packages));
  if (::access("/usr/bin/mmdebstrap", X_OK) != 0) return Error(ErrorCode::kUnsupported, "debian: imports need the package mmdebstrap on this node");
  const std::string sources = sources_for_suite(node_sources(), node_suite(), suite);
  if (sources.empty()) return Error(ErrorCode::kUnsupported, "this node's apt sources name no Debian archive");
  DSEC_TRY(write_file("/work/sources.list", sources));

  std::vector<std::string> environment = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/work", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "TMPDIR=" + place};
  DSEC_TRY(run_program({"/usr/bin/apt-config", "dump"}, environment, {.output = "/work/node-apt.conf"}));
  DSEC_ASSIGN(const std::string dump, sys::read_file("/work/node-apt.conf", kSourcesLimit));
  std::string options;
  std::istringstream lines(dump);
  for (std::string line; std::getline(lines, line);) {
    for (const std::string_view carried : kCarriedOptions) {
      if (line.starts_with(carried) && !line.ends_with("\"\";")) options += line + "\n";
    }
  }
  DSEC_TRY(write_file("/work/apt.conf", options));

  std::string include;
  for (const std::string& package : packages) include += (include.empty() ? "" : ",") + package;
  std::vector<std::string> argv = {"/usr/bin/mmdebstrap", "--mode=root", "--format=tar", "--variant=minbase", "--aptopt=/work/apt.conf",
                                   // The node's own settings, proxy included, are not the image's.
                                   "--customize-hook=rm -f \"$1/etc/apt/apt.conf.d/99mmdebstrap\""};
  if (!include.empty()) argv.push_back("--include=" + include);
  argv.insert(argv.end(), {suite, output, "/work/sources.list"});
  if (place != "/work") {
    constexpr const char* kLog = "/work/build.log";
    Result<void> built = run_program(argv, environment, {.output = "", .errors = kLog});
    if (built.ok()) return {};
    DSEC_ASSIGN(const std::string log, sys::read_file(kLog, kLogLimit));
    if (!ran_out_of_room(log)) {
      (void)sys::write_all(STDERR_FILENO, std::string_view(log).substr(log.size() - std::min<std::size_t>(log.size(), 2000)));
      return std::move(built).within("build Debian " + suite);
    }
    environment.back() = "TMPDIR=/work";
  }
  return run_program(argv, environment).within("build Debian " + suite);
}

}  // namespace dsec::image
