#include "cli/dockerignore.h"

#include <algorithm>

namespace dsec::cli {

namespace {

bool matches_class(std::string_view& pattern, char c) {
  const std::size_t close = pattern.find(']', 2);
  if (close == std::string_view::npos) return c == '[' && (pattern.remove_prefix(1), true);
  std::string_view set = pattern.substr(1, close - 1);
  pattern.remove_prefix(close + 1);
  const bool negated = set.starts_with('^');
  if (negated) set.remove_prefix(1);
  bool found = false;
  for (std::size_t i = 0; i < set.size(); i++) {
    if (i + 2 < set.size() && set[i + 1] == '-') {
      found = found || (set[i] <= c && c <= set[i + 2]);
      i += 2;
    } else {
      found = found || set[i] == c;
    }
  }
  return found != negated;
}

bool matches(std::string_view pattern, std::string_view path) {
  while (!pattern.empty()) {
    if (pattern.starts_with("**")) {
      pattern.remove_prefix(2);
      if (pattern.starts_with('/')) {
        // No directory at all, or any number of them.
        if (matches(pattern.substr(1), path)) return true;
        for (std::size_t i = 0; i < path.size(); i++) {
          if (path[i] == '/' && matches(pattern.substr(1), path.substr(i + 1))) return true;
        }
        return false;
      }
      for (std::size_t i = 0; i <= path.size(); i++) {
        if (matches(pattern, path.substr(i))) return true;
      }
      return false;
    }
    if (pattern.front() == '*') {
      pattern.remove_prefix(1);
      for (std::size_t i = 0; i <= path.size(); i++) {
        if (matches(pattern, path.substr(i))) return true;
        if (i < path.size() && path[i] == '/') return false;
      }
      return false;
    }
    if (path.empty()) return false;
    const char c = path.front();
    if (pattern.front() == '[') {
      if (c == '/' || !matches_class(pattern, c)) return false;
      path.remove_prefix(1);
      continue;
    }
    if (pattern.front() == '\\' && pattern.size() > 1) pattern.remove_prefix(1);
    else if (pattern.front() == '?') {
      if (c == '/') return false;
      pattern.remove_prefix(1);
      path.remove_prefix(1);
      continue;
    }
    if (pattern.front() != c) return false;
    pattern.remove_prefix(1);
    path.remove_prefix(1);
  }
  return path.empty();
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// Without "." and empty components, and without a slash at either end.
std::string clean(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find('/'));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    if (part.empty() || part == ".") continue;
    if (!out.empty()) out += '/';
    out += part;
  }
  return out;
}

}  // namespace

DockerIgnore::DockerIgnore(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.starts_with('#')) continue;
    std::string_view rest = trimmed(line);
    const bool keeps = rest.starts_with('!');
    if (keeps) rest = trimmed(rest.substr(1));
    std::string pattern = clean(rest);
    if (pattern.empty()) continue;
    exceptions_ = exceptions_ || keeps;
    patterns_.push_back({std::move(pattern), keeps});
  }
}

bool DockerIgnore::ignores(std::string_view path) const {
  bool out = false;
  for (const Pattern& pattern : patterns_) {
    bool found = matches(pattern.text, path);
    for (std::size_t slash = path.rfind('/'); !found && slash != std::string_view::npos; slash = slash == 0 ? std::string_view::npos : path.rfind('/', slash - 1))
      found = matches(pattern.text, path.substr(0, slash));
    if (found) out = !pattern.keeps;
  }
  return out;
}

}  // namespace dsec::cli
