#include "edge/wal_records.h"

#include <boost/json.hpp>
#include <protozero/pbf_writer.hpp>

#include "edge/wal_read_record.h"
#include "model/json.h"

namespace dsec::edge {
namespace {

using protozero::pbf_reader;
using protozero::pbf_writer;

std::string spec_text(const model::SandboxSpec& spec) { return boost::json::serialize(model::to_json(spec)); }

Result<model::SandboxSpec> parse_spec(const std::string& text) {
  boost::system::error_code failed;
  const boost::json::value value = boost::json::parse(text, failed);
  if (failed) return Error(ErrorCode::kDataFault, "a spec in the edge log is not JSON");
  return model::spec_from_json(value);
}

void add_map(pbf_writer& writer, std::uint32_t tag, const std::map<std::string, std::string>& map) {
  for (const auto& [key, value] : map) {
    std::string entry;
    pbf_writer inner(entry);
    inner.add_string(1, key);
    inner.add_string(2, value);
    writer.add_message(tag, entry);
  }
}

void read_map(pbf_reader entry, std::map<std::string, std::string>& map) {
  std::string key, value;
  while (entry.next()) {
    if (entry.tag() == 1) key = entry.get_string();
    else if (entry.tag() == 2) value = entry.get_string();
    else entry.skip();
  }
  map[key] = value;
}

std::string encode_config(const model::ImageConfig& config) {
  std::string out;
  pbf_writer writer(out);
  for (const auto& part : config.entrypoint) writer.add_string(1, part);
  for (const auto& part : config.command) writer.add_string(2, part);
  add_map(writer, 3, config.env);
  writer.add_string(4, config.cwd);
  writer.add_string(5, config.user);
  return out;
}

model::ImageConfig read_config(pbf_reader reader) {
  model::ImageConfig config;
  while (reader.next()) switch (reader.tag()) {
      case 1: config.entrypoint.push_back(reader.get_string()); break;
      case 2: config.command.push_back(reader.get_string()); break;
      case 3: read_map(reader.get_message(), config.env); break;
      case 4: config.cwd = reader.get_string(); break;
      case 5: config.user = reader.get_string(); break;
      default: reader.skip();
    }
  return config;
}

}  // namespace

std::string encode(const EdgeStartRecord& r) {
  std::string out;
  pbf_writer writer(out);
  writer.add_uint64(2, r.epoch);
  writer.add_string(3, r.boot_id);
  writer.add_int64(4, r.at_ms);
  return out;
}

template <>
Result<EdgeStartRecord> decode_record(std::string_view body) {
  return read_record<EdgeStartRecord>(body, [](EdgeStartRecord& r, pbf_reader& f) {
    switch (f.tag()) {
      case 2: r.epoch = f.get_uint64(); return true;
      case 3: r.boot_id = f.get_string(); return true;
      case 4: r.at_ms = f.get_int64(); return true;
      default: return false;
    }
  });
}

std::string encode(const AcceptedRecord& r) {
  std::string out;
  pbf_writer writer(out);
  writer.add_string(1, r.id);
  writer.add_string(2, r.project);
  writer.add_string(3, spec_text(r.spec));
  for (const auto& digest : r.layer_digests) writer.add_string(4, digest);
  writer.add_message(5, encode_config(r.config));
  writer.add_string(6, r.idempotency_key);
  writer.add_bytes(7, r.fingerprint);
  writer.add_bytes(8, r.secret);
  writer.add_int64(9, r.created_at_ms);
  return out;
}

template <>
Result<AcceptedRecord> decode_record(std::string_view body) {
  std::string spec;
  DSEC_ASSIGN(AcceptedRecord record, read_record<AcceptedRecord>(body, [&](AcceptedRecord& r, pbf_reader& f) {
                switch (f.tag()) {
                  case 1: r.id = f.get_string(); return true;
                  case 2: r.project = f.get_string(); return true;
                  case 3: spec = f.get_string(); return true;
                  case 4: r.layer_digests.push_back(f.get_string()); return true;
                  case 5: r.config = read_config(f.get_message()); return true;
                  case 6: r.idempotency_key = f.get_string(); return true;
                  case 7: r.fingerprint = f.get_bytes(); return true;
                  case 8: r.secret = f.get_bytes(); return true;
                  case 9: r.created_at_ms = f.get_int64(); return true;
                  default: return false;
                }
              }));
  DSEC_ASSIGN(record.spec, parse_spec(spec));
  return record;
}

std::string encode(const LaunchedRecord& r) {
  std::string out;
  pbf_writer writer(out);
  writer.add_string(1, r.id);
  writer.add_bytes(2, r.backend_record);
  writer.add_bytes(3, r.upper_record);
  return out;
}

template <>
Result<LaunchedRecord> decode_record(std::string_view body) {
  return read_record<LaunchedRecord>(body, [](LaunchedRecord& r, pbf_reader& f) {
    switch (f.tag()) {
      case 1: r.id = f.get_string(); return true;
      case 2: r.backend_record = f.get_bytes(); return true;
      case 3: r.upper_record = f.get_bytes(); return true;
      default: return false;
    }
  });
}

std::string encode(const StartedRecord& r) {
  std::string out;
  pbf_writer writer(out);
  writer.add_string(1, r.id);
  writer.add_int64(2, r.at_ms);
  writer.add_int64(3, r.expires_at_ms);
  return out;
}

template <>
Result<StartedRecord> decode_record(std::string_view body) {
  return read_record<StartedRecord>(body, [](StartedRecord& r, pbf_reader& f) {
    switch (f.tag()) {
      case 1: r.id = f.get_string(); return true;
      case 2: r.at_ms = f.get_int64(); return true;
      case 3: r.expires_at_ms = f.get_int64(); return true;
      default: return false;
    }
  });
}

std::string encode(const TransitionRecord& r) {
  std::string out;
  pbf_writer writer(out);
  writer.add_string(1, r.id);
  writer.add_string(2, std::string(model::to_string(r.state)));
  writer.add_string(3, std::string(model::to_string(r.cause)));
  writer.add_string(4, r.detail);
  return out;
}

template <>
Result<TransitionRecord> decode_record(std::string_view body) {
  std::string state, cause;
  DSEC_ASSIGN(TransitionRecord record, read_record<TransitionRecord>(body, [&](TransitionRecord& r, pbf_reader& f) {
                switch (f.tag()) {
                  case 1: r.id = f.get_string(); return true;
                  case 2: state = f.get_string(); return true;
                  case 3: cause = f.get_string(); return true;
                  case 4: r.detail = f.get_string(); return true;
                  default: return false;
                }
              }));
  DSEC_ASSIGN(record.state, model::parse_sandbox_state(state));
  DSEC_ASSIGN(record.cause, model::parse_end_cause(cause));
  return record;
}

std::string encode(const PatchedRecord& r) {
  std::string out;
  pbf_writer writer(out);
  writer.add_string(1, r.id);
  writer.add_string(2, spec_text(r.spec));
  writer.add_int64(3, r.expires_at_ms);
  if (r.left_ms >= 0) writer.add_int64(4, r.left_ms);
  return out;
}

template <>
Result<PatchedRecord> decode_record(std::string_view body) {
  std::string spec;
  DSEC_ASSIGN(PatchedRecord record, read_record<PatchedRecord>(body, [&](PatchedRecord& r, pbf_reader& f) {
                switch (f.tag()) {
                  case 1: r.id = f.get_string(); return true;
                  case 2: spec = f.get_string(); return true;
                  case 3: r.expires_at_ms = f.get_int64(); return true;
                  case 4: r.left_ms = f.get_int64(); return true;
                  default: return false;
                }
              }));
  DSEC_ASSIGN(record.spec, parse_spec(spec));
  return record;
}

std::string encode(const OpAcceptedRecord& r) {
  std::string out;
  pbf_writer writer(out);
  writer.add_string(1, r.id);
  writer.add_string(2, r.op_id);
  if (!r.key.empty()) writer.add_string(3, r.key);
  writer.add_bytes(4, r.fingerprint);
  writer.add_string(5, r.request);
  writer.add_int64(6, r.at_ms);
  writer.add_bool(7, r.restartable);
  if (r.start_command) writer.add_bool(8, true);
  if (!r.processes.empty()) writer.add_string(9, r.processes);
  return out;
}

template <>
Result<OpAcceptedRecord> decode_record(std::string_view body) {
  return read_record<OpAcceptedRecord>(body, [](OpAcceptedRecord& r, pbf_reader& f) {
    switch (f.tag()) {
      case 1: r.id = f.get_string(); return true;
      case 2: r.op_id = f.get_string(); return true;
      case 3: r.key = f.get_string(); return true;
      case 4: r.fingerprint = f.get_bytes(); return true;
      case 5: r.request = f.get_string(); return true;
      case 6: r.at_ms = f.get_int64(); return true;
      case 7: r.restartable = f.get_bool(); return true;
      case 8: r.start_command = f.get_bool(); return true;
      case 9: r.processes = f.get_string(); return true;
      default: return false;
    }
  });
}

std::string encode(const OpFinishedRecord& r) {
  std::string out;
  pbf_writer writer(out);
  writer.add_string(1, r.id);
  writer.add_string(2, r.op_id);
  writer.add_uint32(3, r.status);
  writer.add_int32(4, r.exit_code);
  writer.add_int32(5, r.signal);
  if (!r.error.empty()) writer.add_string(6, r.error);
  writer.add_uint64(7, r.duration_usec);
  writer.add_uint64(8, r.frozen_usec);
  writer.add_uint64(9, r.cpu_usec);
  writer.add_uint64(10, r.stalled_usec);
  writer.add_uint64(11, r.memory_peak_bytes);
  writer.add_bool(12, r.shell_modified);
  writer.add_bool(13, r.infra);
  for (const auto& stream : r.streams) {
    std::string inner;
    pbf_writer fields(inner);
    fields.add_uint64(1, stream.total);
    fields.add_uint64(2, stream.stored);
    fields.add_uint64(3, stream.tail_offset);
    fields.add_bytes(4, stream.tail);
    fields.add_bool(5, stream.ended);
    writer.add_message(14, inner);
  }
  writer.add_int64(15, r.started_at_ms);
  writer.add_int64(16, r.finished_at_ms);
  if (r.oom_kills != 0) writer.add_uint64(17, r.oom_kills);
  return out;
}

template <>
Result<OpFinishedRecord> decode_record(std::string_view body) {
  std::size_t stream = 0;
  return read_record<OpFinishedRecord>(body, [&](OpFinishedRecord& r, pbf_reader& f) {
    switch (f.tag()) {
      case 1: r.id = f.get_string(); return true;
      case 2: r.op_id = f.get_string(); return true;
      case 3: r.status = static_cast<std::uint8_t>(f.get_uint32()); return true;
      case 4: r.exit_code = f.get_int32(); return true;
      case 5: r.signal = f.get_int32(); return true;
      case 6: r.error = f.get_string(); return true;
      case 7: r.duration_usec = f.get_uint64(); return true;
      case 8: r.frozen_usec = f.get_uint64(); return true;
      case 9: r.cpu_usec = f.get_uint64(); return true;
      case 10: r.stalled_usec = f.get_uint64(); return true;
      case 11: r.memory_peak_bytes = f.get_uint64(); return true;
      case 12: r.shell_modified = f.get_bool(); return true;
      case 13: r.infra = f.get_bool(); return true;
      case 14: {
        if (stream >= 2) return false;
        pbf_reader fields = f.get_message();
        auto& into = r.streams[stream++];
        while (fields.next()) switch (fields.tag()) {
            case 1: into.total = fields.get_uint64(); break;
            case 2: into.stored = fields.get_uint64(); break;
            case 3: into.tail_offset = fields.get_uint64(); break;
            case 4: into.tail = fields.get_bytes(); break;
            case 5: into.ended = fields.get_bool(); break;
            default: fields.skip();
          }
        return true;
      }
      case 15: r.started_at_ms = f.get_int64(); return true;
      case 16: r.finished_at_ms = f.get_int64(); return true;
      case 17: r.oom_kills = f.get_uint64(); return true;
      default: return false;
    }
  });
}

std::string encode(const EndedRecord& r) {
  std::string out;
  pbf_writer writer(out);
  writer.add_string(1, r.id);
  writer.add_string(2, std::string(model::to_string(r.cause)));
  writer.add_string(3, r.detail);
  writer.add_int64(4, r.at_ms);
  return out;
}

template <>
Result<EndedRecord> decode_record(std::string_view body) {
  std::string cause;
  DSEC_ASSIGN(EndedRecord record, read_record<EndedRecord>(body, [&](EndedRecord& r, pbf_reader& f) {
                switch (f.tag()) {
                  case 1: r.id = f.get_string(); return true;
                  case 2: cause = f.get_string(); return true;
                  case 3: r.detail = f.get_string(); return true;
                  case 4: r.at_ms = f.get_int64(); return true;
                  default: return false;
                }
              }));
  DSEC_ASSIGN(record.cause, model::parse_end_cause(cause));
  return record;
}

std::string encode(const ForgottenRecord& r) {
  std::string out;
  pbf_writer writer(out);
  writer.add_string(1, r.id);
  if (r.erase) writer.add_bool(2, true);
  return out;
}

template <>
Result<ForgottenRecord> decode_record(std::string_view body) {
  return read_record<ForgottenRecord>(body, [](ForgottenRecord& r, pbf_reader& f) {
    switch (f.tag()) {
      case 1: r.id = f.get_string(); return true;
      case 2: r.erase = f.get_bool(); return true;
      default: return false;
    }
  });
}

std::string encode(const DataFaultRecord& r) {
  std::string out;
  pbf_writer writer(out);
  writer.add_string(1, r.id);
  writer.add_int64(2, r.at_ms);
  writer.add_string(3, r.detail);
  return out;
}

template <>
Result<DataFaultRecord> decode_record(std::string_view body) {
  return read_record<DataFaultRecord>(body, [](DataFaultRecord& r, pbf_reader& f) {
    switch (f.tag()) {
      case 1: r.id = f.get_string(); return true;
      case 2: r.at_ms = f.get_int64(); return true;
      case 3: r.detail = f.get_string(); return true;
      default: return false;
    }
  });
}

std::string encode(const EventRecord& r) {
  std::string out;
  pbf_writer writer(out);
  writer.add_string(1, r.id);
  writer.add_uint64(2, r.sequence);
  writer.add_int64(3, r.at_ms);
  writer.add_string(4, r.type);
  writer.add_string(5, r.detail);
  return out;
}

template <>
Result<EventRecord> decode_record(std::string_view body) {
  return read_record<EventRecord>(body, [](EventRecord& r, pbf_reader& f) {
    switch (f.tag()) {
      case 1: r.id = f.get_string(); return true;
      case 2: r.sequence = f.get_uint64(); return true;
      case 3: r.at_ms = f.get_int64(); return true;
      case 4: r.type = f.get_string(); return true;
      case 5: r.detail = f.get_string(); return true;
      default: return false;
    }
  });
}

std::string encode(const RolledBackRecord& r) {
  std::string out;
  pbf_writer writer(out);
  writer.add_string(1, r.id);
  writer.add_string(2, r.checkpoint);
  for (const auto& digest : r.layer_digests) writer.add_string(3, digest);
  writer.add_int64(4, r.at_ms);
  return out;
}

template <>
Result<RolledBackRecord> decode_record(std::string_view body) {
  return read_record<RolledBackRecord>(body, [](RolledBackRecord& r, pbf_reader& f) {
    switch (f.tag()) {
      case 1: r.id = f.get_string(); return true;
      case 2: r.checkpoint = f.get_string(); return true;
      case 3: r.layer_digests.push_back(f.get_string()); return true;
      case 4: r.at_ms = f.get_int64(); return true;
      default: return false;
    }
  });
}

Result<std::string> sandbox_of(std::string_view body) {
  return read_record<std::string>(body, [](std::string& id, pbf_reader& f) {
    if (f.tag() != 1) return false;
    id = f.get_string();
    return true;
  });
}

}  // namespace dsec::edge
