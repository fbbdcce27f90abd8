// JSON values as text. Boost.JSON writes 39.7 as 3.97E1, which is right and which
// nobody reads: here a number is a plain decimal wherever it is not astronomical.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace dsec::model {

std::string json_text(const boost::json::value& value);
std::string json_text(const boost::json::object& object);
// Names of files are bytes: as text with U+FFFD, and the exact bytes in a field
// with _base64 where that lost anything.
void put_bytes(boost::json::object& out, std::string_view field, std::string_view bytes);
// "0644"
std::string mode_text(std::uint32_t mode);

}  // namespace dsec::model
