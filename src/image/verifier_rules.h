// Rules that find what is in a verifier layer, wherever somebody has put it.
#pragma once

#include <string>
#include <vector>

#include "image/layer_store.h"
#include "image/residue.h"

namespace dsec::image {

// One for each file of at least 32 bytes: its content, or the middle of it where it
// is long. `label` says in messages which layer it was. kTooLarge past 10,000. Blocks.
Result<std::vector<ResidueRule>> verifier_rules(const LayerStore& layers, const std::string& digest, const std::string& label);

}  // namespace dsec::image
