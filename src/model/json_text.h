// JSON values as text. Boost.JSON writes 39.7 as 3.97E1, which is right and which
// nobody reads: here a number is a plain decimal wherever it is not astronomical.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>

namespace dsec::model {

std::string json_text(const boost::json::value& value);
std::string json_text(const boost::json::object& object);

}  // namespace dsec::model
