// The records of pauses, fences and holds.

#include <protozero/pbf_writer.hpp>

#include "edge/wal_read_record.h"
#include "edge/wal_records.h"

namespace dsec::edge {

using protozero::pbf_reader;
using protozero::pbf_writer;

std::string encode(const PausedRecord& r) {
  std::string out;
  pbf_writer writer(out);
  writer.add_string(1, r.id);
  writer.add_int64(2, r.pause.at_ms);
  writer.add_string(3, r.pause.reason);
  writer.add_string(4, std::string(model::to_string(r.pause.wake)));
  if (r.pause.fence != 0) writer.add_uint64(5, r.pause.fence);
  writer.add_sint64(6, r.pause.left_ms);
  writer.add_sint64(7, r.pause.reclaimed_bytes);
  writer.add_sint64(8, r.pause.swapped_bytes);
  return out;
}

template <>
Result<PausedRecord> decode_record(std::string_view body) {
  std::string wake = "any";
  DSEC_ASSIGN(PausedRecord record, read_record<PausedRecord>(body, [&](PausedRecord& r, pbf_reader& f) {
                switch (f.tag()) {
                  case 1: r.id = f.get_string(); return true;
                  case 2: r.pause.at_ms = f.get_int64(); return true;
                  case 3: r.pause.reason = f.get_string(); return true;
                  case 4: wake = f.get_string(); return true;
                  case 5: r.pause.fence = f.get_uint64(); return true;
                  case 6: r.pause.left_ms = f.get_sint64(); return true;
                  case 7: r.pause.reclaimed_bytes = f.get_sint64(); return true;
                  case 8: r.pause.swapped_bytes = f.get_sint64(); return true;
                  default: return false;
                }
              }));
  DSEC_ASSIGN(record.pause.wake, model::parse_wake(wake));
  return record;
}

std::string encode(const ResumedRecord& r) {
  std::string out;
  pbf_writer writer(out);
  writer.add_string(1, r.id);
  writer.add_int64(2, r.at_ms);
  writer.add_int64(3, r.expires_at_ms);
  return out;
}

template <>
Result<ResumedRecord> decode_record(std::string_view body) {
  return read_record<ResumedRecord>(body, [](ResumedRecord& r, pbf_reader& f) {
    switch (f.tag()) {
      case 1: r.id = f.get_string(); return true;
      case 2: r.at_ms = f.get_int64(); return true;
      case 3: r.expires_at_ms = f.get_int64(); return true;
      default: return false;
    }
  });
}

std::string encode(const FencedRecord& r) {
  std::string out;
  pbf_writer writer(out);
  writer.add_string(1, r.id);
  writer.add_uint64(2, r.fence);
  return out;
}

template <>
Result<FencedRecord> decode_record(std::string_view body) {
  return read_record<FencedRecord>(body, [](FencedRecord& r, pbf_reader& f) {
    switch (f.tag()) {
      case 1: r.id = f.get_string(); return true;
      case 2: r.fence = f.get_uint64(); return true;
      default: return false;
    }
  });
}

std::string encode(const HeldRecord& r) {
  std::string out;
  pbf_writer writer(out);
  writer.add_string(1, r.id);
  writer.add_string(2, r.project);
  writer.add_string(3, r.selector);
  writer.add_string(4, r.reason);
  writer.add_string(5, std::string(model::to_string(r.wake)));
  if (r.fence != 0) writer.add_uint64(6, r.fence);
  writer.add_int64(7, r.at_ms);
  return out;
}

template <>
Result<HeldRecord> decode_record(std::string_view body) {
  std::string wake = "any";
  DSEC_ASSIGN(HeldRecord record, read_record<HeldRecord>(body, [&](HeldRecord& r, pbf_reader& f) {
                switch (f.tag()) {
                  case 1: r.id = f.get_string(); return true;
                  case 2: r.project = f.get_string(); return true;
                  case 3: r.selector = f.get_string(); return true;
                  case 4: r.reason = f.get_string(); return true;
                  case 5: wake = f.get_string(); return true;
                  case 6: r.fence = f.get_uint64(); return true;
                  case 7: r.at_ms = f.get_int64(); return true;
                  default: return false;
                }
              }));
  DSEC_ASSIGN(record.wake, model::parse_wake(wake));
  return record;
}

std::string encode(const HoldEndedRecord& r) {
  std::string out;
  pbf_writer writer(out);
  writer.add_string(1, r.id);
  return out;
}

template <>
Result<HoldEndedRecord> decode_record(std::string_view body) {
  return read_record<HoldEndedRecord>(body, [](HoldEndedRecord& r, pbf_reader& f) {
    if (f.tag() != 1) return false;
    r.id = f.get_string();
    return true;
  });
}

}  // namespace dsec::edge
