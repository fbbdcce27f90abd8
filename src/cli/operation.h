// Calls that the server goes on with after its answer.
#pragma once

#include <boost/json/value.hpp>
#include <string>

#include "cli/context.h"
#include "cli/progress.h"

namespace dsec::cli {

// Follows an operation to its end and returns its result. `progress` may be absent.
Result<json::value> follow_operation(Context& context, const std::string& id, const std::string& what, Progress* progress);

}  // namespace dsec::cli
