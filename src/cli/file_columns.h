// Files as a listing shows them, of a sandbox or of a layer.
#pragma once

#include <string>
#include <vector>

#include "cli/table.h"

namespace dsec::cli {

// `name_field`: "name" or "path".
std::vector<Column> file_columns(std::string name_field);

}  // namespace dsec::cli
