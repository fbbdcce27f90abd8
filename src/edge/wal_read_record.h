// Reading of one record's body, for the files that know records.
#pragma once

#include <protozero/pbf_reader.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace dsec::edge {

// Runs `field` for each field; protozero's exceptions end here.
template <typename Record, typename Field>
Result<Record> read_record(std::string_view body, Field field) {
  Record record;
  try {
    protozero::pbf_reader reader(body.data(), body.size());
    while (reader.next()) {
      if (!field(record, reader)) reader.skip();
    }
  } catch (const std::exception& failed) {
    return Error(ErrorCode::kDataFault, std::string("a record of the edge log cannot be read: ") + failed.what());
  }
  return record;
}

}  // namespace dsec::edge
