// Calls that the server goes on with after its answer.
#pragma once

#include <boost/json/value.hpp>
#include <string>

#include "cli/context.h"
#include "cli/progress.h"

namespace dsec::cli {

// Follows an operation to its end and returns its result. `progress` may be absent.
Result<json::value> follow_operation(Context& context, const std::string& id, const std::string& what, Progress* progress);

// Starts one by a POST and follows it.
Result<json::value> run_operation(Context& context, const std::string& target, const json::value& body, const std::string& what);

}  // namespace dsec::cli
