// A Debian root filesystem by mmdebstrap(1), from the node's own apt sources.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace dsec::image {

// Whether these can be names in Debian: nothing of them reaches a shell or looks
// like an option.
Result<void> validate_debian_names(const std::string& suite, const std::vector<std::string>& packages);

// The node's sources turned to `suite`: entries of the node's own release (by
// its code name, with -updates and -security) keep address, components and
// keyring and change the release; entries of third parties are left out. One
// line of sources.list(5) an entry. `texts`: the contents of sources.list and of
// *.list and *.sources files.
std::string sources_for_suite(const std::vector<std::string>& texts, std::string_view node_suite, std::string_view suite);

// Runs in the confined worker with the package profile: root of its own user
// namespace, on the node's network. The system grows below `place`, which may be
// in memory; when that is too small it is built again below /work. `output`
// becomes a tar file.
Result<void> build_debian(const std::string& suite, const std::vector<std::string>& packages, const std::string& place, const std::string& output);

}  // namespace dsec::image
