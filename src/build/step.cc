#include "build/step.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "build/words.h"

namespace dsec::build {

namespace {

constexpr std::string_view kSecrets = "/run/secrets/";
constexpr std::size_t kMaxEnvironment = 256 << 10;

// Proxies of the caller, which every RUN may see undeclared.
constexpr std::string_view kPredefined[] = {"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "FTP_PROXY", "ftp_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"};

Error unsupported(std::string text) { return Error(ErrorCode::kUnsupported, std::move(text)); }

Lookup lookup_in(const StageState& state) {
  return [&state](std::string_view name) -> std::optional<std::string> {
    if (const auto env = state.config.env.find(std::string(name)); env != state.config.env.end()) return env->second;
    if (const auto arg = state.args.find(std::string(name)); arg != state.args.end()) return arg->second;
    return std::nullopt;
  };
}

bool is_variable(std::string_view name) { return !name.empty() && name.find('=') == std::string_view::npos && name.find('\0') == std::string_view::npos; }

// "key=value key2=value2", or the old "key value".
Result<std::vector<std::pair<std::string, std::string>>> pairs(const Instruction& instruction, const StageState& state) {
  DSEC_ASSIGN(const std::vector<std::string> words, split_words(instruction.text, state.escape));
  const Lookup lookup = lookup_in(state);
  std::vector<std::pair<std::string, std::string>> out;
  if (words[0].find('=') == std::string::npos) {
    const std::size_t blank = instruction.text.find_first_of(" \t");
    if (blank == std::string::npos) return invalid_argument(instruction.name + " " + words[0].substr(0, 100) + " has no value");
    const std::size_t value = instruction.text.find_first_not_of(" \t", blank);
    DSEC_ASSIGN(std::string name, expand(words[0], lookup, state.escape));
    DSEC_ASSIGN(std::string text, expand(instruction.text.substr(value), lookup, state.escape));
    out.emplace_back(std::move(name), std::move(text));
    return out;
  }
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) return invalid_argument(instruction.name + ": " + word.substr(0, 100) + " has no =");
    DSEC_ASSIGN(std::string name, expand(word.substr(0, equals), lookup, state.escape));
    DSEC_ASSIGN(std::string value, expand(word.substr(equals + 1), lookup, state.escape));
    out.emplace_back(std::move(name), std::move(value));
  }
  return out;
}

Result<std::vector<std::string>> expanded_words(const Instruction& instruction, const StageState& state) {
  std::vector<std::string> words = instruction.words;
  if (!instruction.json) {
    DSEC_ASSIGN(words, split_words(instruction.text, state.escape));
  }
  for (std::string& word : words) {
    // The JSON form has had its quotes taken; a variable in it is put in all the same.
    if (instruction.json && word.find('$') == std::string::npos) continue;
    DSEC_ASSIGN(word, expand(word, lookup_in(state), state.escape));
  }
  return words;
}

std::vector<std::string> shell_of(const StageState& state) { return state.config.shell.empty() ? std::vector<std::string>{"/bin/sh", "-c"} : state.config.shell; }

std::vector<std::string> command_of(const Instruction& instruction, const StageState& state) {
  if (instruction.json) return instruction.words;
  std::vector<std::string> out = shell_of(state);
  out.push_back(instruction.text);
  return out;
}

std::string absolute(const std::string& path, const model::ImageConfig& config) {
  if (path.starts_with('/')) return path;
  const std::string& cwd = config.cwd.empty() ? std::string("/") : config.cwd;
  return cwd.ends_with('/') ? cwd + path : cwd + "/" + path;
}

// Without "." and ".."; a slash at the end stays.
std::string normal(const std::string& path) {
  std::vector<std::string> parts;
  std::string_view rest = path;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find('/'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    if (part.empty() || part == ".") continue;
    if (part != "..") parts.emplace_back(part);
    else if (!parts.empty()) parts.pop_back();
  }
  std::string out;
  for (const std::string& part : parts) out += "/" + part;
  if (out.empty()) return "/";
  const bool directory = path.ends_with('/') || path.ends_with("/.");
  return directory ? out + "/" : out;
}

Result<std::uint32_t> number(const std::string& field, const std::string& text, int base, std::uint32_t most) {
  std::uint32_t out = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), out, base);
  if (text.empty() || failed != std::errc() || end != text.data() + text.size() || out > most) return invalid_argument(field + ": not a number that fits: " + text.substr(0, 40));
  return out;
}

bool is_secret_id(const std::string& id) {
  return !id.empty() && id.size() <= 64 && id.front() != '.' &&
         std::all_of(id.begin(), id.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.'; });
}

Result<void> add_mount(const std::string& text, const StageState& state, RunStep& step) {
  std::map<std::string, std::string> fields;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const std::size_t equals = item.find('=');
    fields[std::string(item.substr(0, equals))] = equals == std::string_view::npos ? "true" : std::string(item.substr(equals + 1));
  }
  const auto take = [&fields](const char* name) {
    const auto found = fields.find(name);
    std::string value = found == fields.end() ? "" : found->second;
    fields.erase(name);
    return value;
  };
  const std::string type = take("type");
  std::string target = take("target");
  for (const char* other : {"dst", "destination"}) {
    if (const std::string value = take(other); target.empty()) target = value;
  }
  if (type == "secret") {
    SecretMount mount{.id = take("id"), .target = {}};
    if (mount.id.empty() && !target.empty()) mount.id = target.substr(target.rfind('/') + 1);
    if (!is_secret_id(mount.id)) return invalid_argument("--mount=type=secret: an id of letters, digits, _, - and .");
    mount.target = normal(target.empty() ? std::string(kSecrets) + mount.id : absolute(target, state.config));
    mount.required = take("required") == "true";
    if (const std::string mode = take("mode"); !mode.empty()) {
      DSEC_ASSIGN(mount.mode, number("--mount mode", mode, 8, 0777));
    }
    if (const std::string uid = take("uid"); !uid.empty()) {
      DSEC_ASSIGN(mount.uid, number("--mount uid", uid, 10, 65535));
    }
    if (fields.contains("env")) return unsupported("--mount=type=secret,env=: a secret is a file here; variables are logged and seen by every child");
    step.secrets.push_back(std::move(mount));
  } else if (type == "cache" || type == "tmpfs") {
    if (target.empty()) return invalid_argument("--mount=type=" + type + ": target is missing");
    const std::string path = normal(absolute(target, state.config));
    if (path == "/") return invalid_argument("--mount=type=" + type + ": the root is no target");
    step.scratch.push_back(path.ends_with('/') ? path.substr(0, path.size() - 1) : path);
    // Who may share a cache and how large a tmpfs grows mean nothing for one that begins empty and ends with the step.
    for (const char* moot : {"id", "sharing", "size", "mode", "uid", "gid"}) (void)take(moot);
  } else {
    return unsupported("--mount=type=" + (type.empty() ? "bind" : type.substr(0, 40)) + " is not supported: secret, cache and tmpfs are");
  }
  if (!fields.empty()) return unsupported("--mount: " + fields.begin()->first.substr(0, 40) + " is not supported with type=" + type);
  return {};
}

Result<Step> run_step(const Instruction& instruction, const StageState& state) {
  RunStep step;
  step.args = state.args;
  for (const std::string_view name : kPredefined) {
    if (const auto given = state.offered.find(std::string(name)); given != state.offered.end()) step.args.insert(*given);
  }
  for (const auto& [flag, value] : instruction.flags) {
    if (flag == "mount") {
      DSEC_ASSIGN(const std::string mount, expand(value, lookup_in(state), state.escape));
      DSEC_TRY(add_mount(mount, state, step));
    } else if (value == "none") {
      step.network = false;
    } else if (value != "default") {
      return unsupported("RUN --network=" + value.substr(0, 40) + ": default and none are supported");
    }
  }
  if (instruction.json && instruction.words.empty()) return invalid_argument("RUN []: no command");
  step.argv = command_of(instruction, state);
  if (instruction.heredocs.empty()) return Step(std::move(step));
  DSEC_ASSIGN(const std::vector<std::string> words, split_words(instruction.text, state.escape));
  const std::string& first = instruction.heredocs[0].content;
  if (words.size() > 1) {
    // The shell reads the documents itself.
    std::string text = instruction.text;
    for (const Heredoc& document : instruction.heredocs) text += "\n" + document.content + document.name;
    step.argv.back() = text + "\n";
  } else if (first.starts_with("#!")) {
    const std::string_view line = std::string_view(first).substr(2, first.find('\n') - 2);
    const std::size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return invalid_argument("the here-document's #! names no program");
    const std::size_t blank = line.find_first_of(" \t", begin);
    step.argv = {std::string(line.substr(begin, blank - begin))};
    if (blank != std::string_view::npos) {
      const std::size_t argument = line.find_first_not_of(" \t", blank);
      if (argument != std::string_view::npos) step.argv.emplace_back(line.substr(argument, line.find_last_not_of(" \t\r") - argument + 1));
    }
    step.argv.emplace_back(kScriptPath);
    step.script = first;
  } else {
    step.argv.back() = first;
  }
  return Step(std::move(step));
}

Result<Step> copy_step(const Instruction& instruction, const StageState& state) {
  CopyStep step;
  const Lookup lookup = lookup_in(state);
  const bool add = instruction.name == "ADD";
  for (const auto& [flag, value] : instruction.flags) {
    DSEC_ASSIGN(const std::string text, expand(value, lookup, state.escape));
    if (text.empty()) return invalid_argument("--" + flag + " is empty");
    if (flag == "from") step.from = text;
    if (flag == "chown") step.spec.owner = text;
    if (flag == "link" && text != "true" && text != "false") return invalid_argument("--link: true or false");  // a copy is a layer of its own either way
    if (flag == "chmod") {
      DSEC_ASSIGN(const std::uint32_t mode, number("--chmod", text, 8, 07777));
      step.spec.mode = static_cast<std::uint16_t>(mode);
    }
  }
  DSEC_ASSIGN(std::vector<std::string> words, expanded_words(instruction, state));
  if (words.size() < 2) return invalid_argument(instruction.name + " SOURCE... DESTINATION");
  const std::string destination = std::move(words.back());
  words.pop_back();
  if (destination.empty()) return invalid_argument(instruction.name + ": the destination is empty");
  step.spec.destination = normal(absolute(destination, state.config));
  if ((destination == "." || destination == "./") && !step.spec.destination.ends_with('/')) step.spec.destination += '/';
  step.spec.unpack = add;
  step.spec.keep_owners = !step.from.empty();
  std::size_t document = 0;
  for (std::string& word : words) {
    if (word.starts_with("<<") && document < instruction.heredocs.size()) {
      const Heredoc& heredoc = instruction.heredocs[document++];
      std::string content = heredoc.content;
      if (heredoc.expand) {
        // Quotes are text in a document: each line's variables alone are put in.
        std::string quoted;
        for (std::size_t i = 0; i < content.size(); i++) {
          const bool literal = content[i] == state.escape && (i + 1 == content.size() || content[i + 1] != '$');
          if (content[i] == '"' || content[i] == '\'' || literal) quoted += state.escape;
          quoted += content[i];
        }
        DSEC_ASSIGN(content, expand(quoted, lookup, state.escape));
      }
      step.spec.files.push_back({heredoc.name, std::move(content)});
      continue;
    }
    if (word.empty()) return invalid_argument(instruction.name + ": an empty source");
    if (add && (word.starts_with("http://") || word.starts_with("https://") || word.starts_with("git@") || word.starts_with("ssh://") || word.starts_with("git://")))
      return unsupported("ADD of an address is not supported: fetch it in a RUN, with a network service that allows it");
    step.spec.sources.push_back(std::move(word));
  }
  if (!step.from.empty() && !step.spec.files.empty()) return invalid_argument("COPY --from takes no here-document");
  return Step(std::move(step));
}

Result<void> declare_args(const Instruction& instruction, StageState& state) {
  DSEC_ASSIGN(const std::vector<std::string> words, split_words(instruction.text, state.escape));
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (!is_variable(name)) return invalid_argument("ARG: not a name: " + name.substr(0, 100));
    if (const auto offered = state.offered.find(name); offered != state.offered.end()) {
      state.args[name] = offered->second;
    } else if (equals != std::string::npos) {
      DSEC_ASSIGN(state.args[name], expand(word.substr(equals + 1), lookup_in(state), state.escape));
    }
  }
  return {};
}

Result<void> expose(const Instruction& instruction, StageState& state) {
  DSEC_ASSIGN(const std::vector<std::string> words, expanded_words(instruction, state));
  for (const std::string& word : words) {
    const std::size_t slash = word.find('/');
    const std::string protocol = slash == std::string::npos ? "tcp" : word.substr(slash + 1);
    if (protocol != "tcp" && protocol != "udp") return invalid_argument("EXPOSE: tcp or udp, not " + protocol.substr(0, 40));
    const std::string range = word.substr(0, slash);
    const std::size_t dash = range.find('-');
    DSEC_ASSIGN(const std::uint32_t first, number("EXPOSE", range.substr(0, dash), 10, 65535));
    std::uint32_t last = first;
    if (dash != std::string::npos) {
      DSEC_ASSIGN(last, number("EXPOSE", range.substr(dash + 1), 10, 65535));
    }
    if (first == 0 || last < first || last - first > 1000) return invalid_argument("EXPOSE: not ports: " + word.substr(0, 40));
    for (std::uint32_t port = first; port <= last; port++) {
      const std::string text = std::to_string(port) + "/" + protocol;
      std::vector<std::string>& ports = state.config.exposed_ports;
      if (std::find(ports.begin(), ports.end(), text) == ports.end()) ports.push_back(text);
    }
  }
  return {};
}

Result<std::string> one_word(const Instruction& instruction, const StageState& state) {
  DSEC_ASSIGN(std::string text, expand(instruction.text, lookup_in(state), state.escape));
  if (text.empty()) return invalid_argument(instruction.name + " says nothing");
  return text;
}

Result<Step> work_in(const Instruction& instruction, StageState& state) {
  DSEC_ASSIGN(const std::string path, one_word(instruction, state));
  std::string cwd = normal(absolute(path, state.config));
  if (cwd.size() > 1 && cwd.ends_with('/')) cwd.pop_back();
  state.config.cwd = cwd;
  CopyStep step;
  step.spec.destination = cwd;
  step.spec.directory = image::CopySpec::Directory::kMake;
  return Step(std::move(step));
}

Result<void> configure(const Instruction& instruction, StageState& state) {
  model::ImageConfig& config = state.config;
  const std::string& name = instruction.name;
  if (name == "ENV" || name == "LABEL") {
    DSEC_ASSIGN(const auto set, pairs(instruction, state));
    for (const auto& [key, value] : set) {
      if (name == "ENV" && !is_variable(key)) return invalid_argument("ENV: not a name: " + key.substr(0, 100));
      (name == "ENV" ? config.env : config.labels)[key] = value;
    }
    std::size_t bytes = 0;
    for (const auto& [key, value] : name == "ENV" ? config.env : config.labels) bytes += key.size() + value.size();
    if (bytes > kMaxEnvironment) return Error(ErrorCode::kTooLarge, name + ": more than 256 KiB together");
  } else if (name == "ARG") {
    return declare_args(instruction, state);
  } else if (name == "CMD") {
    config.command = command_of(instruction, state);
    state.command_set = true;
  } else if (name == "ENTRYPOINT") {
    config.entrypoint = command_of(instruction, state);
    if (!state.command_set) config.command.clear();
  } else if (name == "SHELL") {
    if (!instruction.json || instruction.words.empty()) return invalid_argument("SHELL takes a JSON list");
    config.shell = instruction.words;
  } else if (name == "USER") {
    DSEC_ASSIGN(config.user, one_word(instruction, state));
  } else if (name == "EXPOSE") {
    return expose(instruction, state);
  } else if (name == "VOLUME") {
    DSEC_ASSIGN(const std::vector<std::string> words, expanded_words(instruction, state));
    for (const std::string& word : words) {
      if (std::find(config.volumes.begin(), config.volumes.end(), word) == config.volumes.end()) config.volumes.push_back(word);
    }
  } else if (name == "STOPSIGNAL") {
    DSEC_ASSIGN(config.stop_signal, one_word(instruction, state));
  } else if (name == "MAINTAINER") {
    config.labels["maintainer"] = instruction.text;
  } else if (name != "HEALTHCHECK") {  // NONE: there is none to forget
    return unsupported(name + " is not supported");
  }
  return {};
}

}  // namespace

Result<Step> resolve(const Instruction& instruction, StageState& state) {
  Result<Step> out = Step();
  if (instruction.name == "RUN") {
    out = run_step(instruction, state);
  } else if (instruction.name == "COPY" || instruction.name == "ADD") {
    out = copy_step(instruction, state);
  } else if (instruction.name == "WORKDIR") {
    out = work_in(instruction, state);
  } else if (Result<void> done = configure(instruction, state); !done.ok()) {
    out = std::move(done).error();
  }
  return std::move(out).within("line " + std::to_string(instruction.line));
}

Result<std::string> expand_from(const std::string& word, const std::map<std::string, std::string>& globals, char escape) {
  return expand(word, [&globals](std::string_view name) -> std::optional<std::string> {
    const auto found = globals.find(std::string(name));
    return found == globals.end() ? std::nullopt : std::optional(found->second);
  }, escape);
}

Result<std::map<std::string, std::string>> global_args(const Plan& plan, const std::map<std::string, std::string>& given) {
  std::map<std::string, std::string> out;
  for (const Instruction& instruction : plan.globals) {
    const std::string where = "line " + std::to_string(instruction.line);
    DSEC_ASSIGN(const std::vector<std::string> words, split_words(instruction.text, plan.escape).within(where));
    for (const std::string& word : words) {
      const std::size_t equals = word.find('=');
      const std::string name = word.substr(0, equals);
      if (!is_variable(name)) return Error(invalid_argument(where + ": ARG: not a name: " + name.substr(0, 100)));
      if (const auto value = given.find(name); value != given.end()) {
        out[name] = value->second;
      } else if (equals != std::string::npos) {
        DSEC_ASSIGN(out[name], expand_from(word.substr(equals + 1), out, plan.escape).within(where));
      }
    }
  }
  return out;
}

}  // namespace dsec::build
