#include "model/layer.h"

#include <algorithm>

namespace dsec::model {

std::string_view node_architecture() {
#if defined(__x86_64__)
  return "amd64";
#elif defined(__aarch64__)
  return "arm64";
#else
#error "name this architecture as OCI does"
#endif
}

std::string_view to_string(LayerKind kind) {
  switch (kind) {
    case LayerKind::kBase:
      return "base";
    case LayerKind::kWorkspace:
      return "workspace";
    case LayerKind::kToolkit:
      return "toolkit";
    case LayerKind::kDiff:
      return "diff";
    case LayerKind::kVerifier:
      return "verifier";
  }
  return "base";
}

Result<LayerKind> parse_layer_kind(std::string_view text) {
  for (const LayerKind kind : {LayerKind::kBase, LayerKind::kWorkspace, LayerKind::kToolkit, LayerKind::kDiff, LayerKind::kVerifier})
    if (text == to_string(kind)) return kind;
  return invalid_argument("kind must be base, workspace, toolkit, diff or verifier, not \"" + std::string(text.substr(0, 64)) + "\"");
}

namespace {
constexpr std::size_t kMaxNamePart = 128;

bool is_lower(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }
bool is_word(char c) { return is_lower(c) || (c >= 'A' && c <= 'Z') || c == '_'; }

bool is_ref_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNamePart && is_lower(name.front()) &&
         std::ranges::all_of(name, [](char c) { return is_lower(c) || c == '.' || c == '_' || c == '/' || c == '-'; });
}

bool is_ref_tag(std::string_view tag) {
  return !tag.empty() && tag.size() <= kMaxNamePart && is_word(tag.front()) &&
         std::ranges::all_of(tag, [](char c) { return is_word(c) || c == '.' || c == '-'; });
}
}  // namespace

Result<RefName> parse_ref(std::string_view text) {
  // Names have no colon, so the first one starts the tag.
  const std::size_t colon = text.find(':');
  RefName ref;
  ref.name = std::string(text.substr(0, colon));
  ref.tag = colon == std::string_view::npos ? "latest" : std::string(text.substr(colon + 1));
  if (!is_ref_name(ref.name) || !is_ref_tag(ref.tag))
    return invalid_argument("\"" + std::string(text.substr(0, 300)) + "\" is not a name: expected name[:tag], the name of a-z 0-9 . _ / -");
  return ref;
}

bool is_digest(std::string_view text) {
  constexpr std::string_view kPrefix = "sha256:";
  return text.size() == kPrefix.size() + 64 && text.starts_with(kPrefix) &&
         std::ranges::all_of(text.substr(kPrefix.size()), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace dsec::model
