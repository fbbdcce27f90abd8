// The little of XML that S3's answers need. Pure functions on hostile text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace dsec::origin {

// The text of every element of that name, in order, however deep; kDataFault when
// one does not end or holds an escape that is none.
Result<std::vector<std::string>> texts_of(std::string_view xml, std::string_view element);
// Of the first one; "" when there is none, or none that can be read.
std::string first_text_of(std::string_view xml, std::string_view element);

}  // namespace dsec::origin
