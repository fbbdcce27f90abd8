#include "cli/completion.h"

namespace dsec::cli {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

std::string names(const std::vector<VerbNode>& verbs) {
  std::string out;
  for (const VerbNode& verb : verbs) out += (out.empty() ? "" : " ") + verb.name;
  return out;
}

bool takes(const VerbNode& verb, const std::string& what) {
  for (const std::string& argument : verb.arguments)
    if (argument == what) return true;
  return false;
}

// What stands behind a verb when it is no flag: a shell command that lists it.
std::string lister(const VerbNode& verb, const std::string& family) {
  if (takes(verb, "sandbox")) return "dsec ps -q";
  if (takes(verb, "ref")) return "dsec " + family + " ls -q";
  return "";
}

std::string cases(const VerbNode& root) {
  std::string out;
  const auto one = [&out](const std::string& pattern, const VerbNode& verb, const std::string& family) {
    out += "    \"" + pattern + "\") words=\"" + joined(verb.flags) + (verb.verbs.empty() ? "" : " " + names(verb.verbs)) + "\"";
    if (const std::string list = lister(verb, family); !list.empty()) out += "; list=\"" + list + "\"";
    out += " ;;\n";
  };
  for (const VerbNode& verb : root.verbs) {
    one(verb.name, verb, verb.name);
    for (const VerbNode& sub : verb.verbs) one(verb.name + " " + sub.name, sub, verb.name);
  }
  return out;
}

std::string families(const VerbNode& root) {
  std::string out;
  for (const VerbNode& verb : root.verbs)
    if (!verb.verbs.empty()) out += (out.empty() ? "" : "|") + verb.name;
  return out;
}

// Shared by bash and zsh, whose bashcompinit understands it.
std::string bash(const VerbNode& root) {
  return "# Completion of dsec; made by `dsec completion bash`.\n"
         "_dsec() {\n"
         "  local current=\"${COMP_WORDS[COMP_CWORD]}\" verb=\"\" words=\"\" list=\"\" i\n"
         "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "    case \"${COMP_WORDS[i]}\" in\n"
         "      --) COMPREPLY=(); return ;;\n"
         "      -*) ;;\n"
         "      *) if [ -z \"$verb\" ]; then verb=\"${COMP_WORDS[i]}\"; else case \"$verb\" in " + families(root) +
         ") verb=\"$verb ${COMP_WORDS[i]}\" ;; esac; fi ;;\n"
         "    esac\n"
         "  done\n"
         "  case \"$verb\" in\n"
         "    \"\") words=\"" + joined(root.flags) + " " + names(root.verbs) + "\" ;;\n" + cases(root) +
         "  esac\n"
         "  if [ -n \"$list\" ] && [ \"${current#-}\" = \"$current\" ]; then words=\"$($list 2>/dev/null)\"; fi\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "  if [ ${#COMPREPLY[@]} -eq 0 ]; then COMPREPLY=($(compgen -f -- \"$current\")); fi\n"
         "}\n"
         "complete -o filenames -F _dsec dsec\n";
}

std::string in_quotes(std::string text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("\\'") : std::string(1, c);
  return out + "'";
}

std::string fish(const VerbNode& root) {
  std::string out = "# Completion of dsec; made by `dsec completion fish`.\n";
  const auto flags = [&out](const VerbNode& verb, const std::string& condition) {
    for (const std::string& flag : verb.flags)
      out += "complete -c dsec -n " + in_quotes(condition) + (flag.starts_with("--") ? " -l " + flag.substr(2) : " -s " + flag.substr(1)) + "\n";
  };
  for (const VerbNode& verb : root.verbs) {
    out += "complete -c dsec -f -n __fish_use_subcommand -a " + verb.name + " -d " + in_quotes(verb.description) + "\n";
    const std::string seen = "__fish_seen_subcommand_from " + verb.name;
    flags(verb, seen);
    if (const std::string list = lister(verb, verb.name); !list.empty())
      out += "complete -c dsec -n " + in_quotes(seen) + " -a '(" + list + " 2>/dev/null)'\n";
    for (const VerbNode& sub : verb.verbs) {
      out += "complete -c dsec -f -n " + in_quotes(seen) + " -a " + sub.name + " -d " + in_quotes(sub.description) + "\n";
      const std::string both = seen + "; and __fish_seen_subcommand_from " + sub.name;
      flags(sub, both);
      if (const std::string list = lister(sub, verb.name); !list.empty())
        out += "complete -c dsec -n " + in_quotes(both) + " -a '(" + list + " 2>/dev/null)'\n";
    }
  }
  return out;
}

}  // namespace

Result<std::string> completion_script(const std::string& shell, const VerbNode& root) {
  if (shell == "bash") return bash(root);
  if (shell == "zsh") return "autoload -Uz bashcompinit && bashcompinit\n" + bash(root);
  if (shell == "fish") return fish(root);
  return invalid_argument("there is completion for bash, zsh and fish, not for \"" + shell + "\"");
}

}  // namespace dsec::cli
