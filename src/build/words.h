// The words of an instruction: split as a shell would, variables put in.
//
// What Docker's own reader of Dockerfiles does in ENV, COPY and the others: quotes,
// the escape character, $name, ${name}, ${name:-word}, ${name-word}, ${name:+word},
// ${name+word}, ${name:?word}. Other forms are refused.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace dsec::build {

// nullopt: not set.
using Lookup = std::function<std::optional<std::string>(std::string_view name)>;

// At unquoted blanks; quotes and escapes stay in the words. kInvalidArgument for a
// quote without its end.
Result<std::vector<std::string>> split_words(std::string_view text, char escape);
// Variables in, quotes and escapes out.
Result<std::string> expand(std::string_view word, const Lookup& lookup, char escape);

}  // namespace dsec::build
