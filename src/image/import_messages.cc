#include "image/import_messages.h"

#include <array>
#include <boost/json.hpp>

#include "base/encoding.h"
#include "model/json.h"
#include "model/strict_object.h"

namespace dsec::image {

namespace json = boost::json;
using model::StrictObject;

namespace {

struct ModeName {
  ImportMode mode;
  std::string_view name;
};
constexpr std::array kModes = {ModeName{ImportMode::kTar, "tar"}, ModeName{ImportMode::kOci, "oci"},
                               ModeName{ImportMode::kDebian, "debian"}, ModeName{ImportMode::kProbe, "probe"}};

Result<ImportMode> parse_mode(std::string_view text) {
  for (const ModeName& known : kModes) {
    if (known.name == text) return known.mode;
  }
  return invalid_argument("unknown import mode");
}

std::string_view to_string(ImportMode mode) {
  for (const ModeName& known : kModes) {
    if (known.mode == mode) return known.name;
  }
  die("unknown import mode");
}

// What a worker may say about itself and its input. Anything else (a conflict,
// a refused key) it could only make up.
constexpr std::array kWorkerCodes = {ErrorCode::kInvalidArgument, ErrorCode::kTooLarge,  ErrorCode::kExhausted, ErrorCode::kInternal,
                                     ErrorCode::kDataFault,       ErrorCode::kUnsupported, ErrorCode::kUnavailable};

json::array strings(const std::vector<std::string>& values) {
  json::array out;
  for (const std::string& value : values) out.emplace_back(value);
  return out;
}

json::object strings(const std::map<std::string, std::string>& values) {
  json::object out;
  for (const auto& [key, value] : values) out[key] = value;
  return out;
}

Result<ImportResult> read_result(const json::value& value) {
  ImportResult out;
  StrictObject fields(value, "result");
  fields.read("content_bytes", out.counts.content_bytes);
  fields.read("entries", out.counts.entries);
  fields.read("devices_dropped", out.counts.devices_dropped);
  fields.read("attributes_dropped", out.counts.attributes_dropped);
  fields.read("owners_replaced", out.counts.owners_replaced);
  fields.read("architecture", out.architecture);
  fields.read("facts", out.facts);
  if (const json::value* config = fields.take("config")) {
    StrictObject inner(*config, "result.config");
    inner.read("entrypoint", out.config.entrypoint);
    inner.read("command", out.config.command);
    inner.read("env", out.config.env);
    inner.read("cwd", out.config.cwd);
    inner.read("user", out.config.user);
    if (Result<void> done = inner.finish(); !done.ok()) fields.fail(std::move(done).error());
  }
  DSEC_TRY(fields.finish());
  if (out.architecture.empty() || out.architecture.size() > 32) return invalid_argument("result.architecture: not a word");
  return out;
}

Result<WorkerProgress> read_progress(const json::value& value) {
  WorkerProgress out;
  StrictObject fields(value, "progress");
  fields.read("stage", out.stage);
  fields.read("done_bytes", out.done_bytes);
  DSEC_TRY(fields.finish());
  out.stage = tame(out.stage, 32);
  return out;
}

Result<std::optional<Error>> read_error(const json::value& value) {
  std::string name;
  std::string message;
  StrictObject fields(value, "error");
  fields.read("code", name);
  fields.read("message", message);
  DSEC_TRY(fields.finish());
  for (const ErrorCode code : kWorkerCodes) {
    if (traits(code).name == name) return std::optional(Error(code, tame(message, 2000)));
  }
  return std::optional(Error(ErrorCode::kInternal, tame(message, 2000)));
}

}  // namespace

std::string_view to_string(erofs::Profile profile) { return profile == erofs::Profile::kPlain ? "plain" : "lz4"; }

Result<erofs::Profile> parse_profile(std::string_view text) {
  if (text == "plain") return erofs::Profile::kPlain;
  if (text == "lz4") return erofs::Profile::kLz4;
  return invalid_argument("profile: plain or lz4");
}

std::string tame(std::string_view text, std::size_t limit) {
  std::string out;
  for (const char c : to_utf8(text.substr(0, limit), nullptr)) out.push_back(static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c);
  return out;
}

std::string encode(const ImportRequest& request) {
  return json::serialize(json::object{{"mode", json::string_view(to_string(request.mode))},
                                      {"kind", json::string_view(model::to_string(request.kind))},
                                      {"at", request.at},
                                      {"max_bytes", request.max_bytes},
                                      {"max_entries", request.max_entries},
                                      {"profile", json::string_view(to_string(request.profile))},
                                      {"memory_bytes", request.memory_bytes},
                                      {"suite", request.suite},
                                      {"packages", strings(request.packages)}});
}

Result<ImportRequest> decode_request(std::string_view text) {
  DSEC_ASSIGN(const json::value value, model::parse_json(text));
  ImportRequest out;
  StrictObject fields(value, "");
  fields.read_enum("mode", out.mode, &parse_mode);
  fields.read_enum("kind", out.kind, &model::parse_layer_kind);
  fields.read("at", out.at);
  fields.read("max_bytes", out.max_bytes);
  fields.read("max_entries", out.max_entries);
  fields.read_enum("profile", out.profile, &parse_profile);
  fields.read("memory_bytes", out.memory_bytes);
  fields.read("suite", out.suite);
  fields.read("packages", out.packages);
  DSEC_TRY(fields.finish());
  return out;
}

std::string encode(const WorkerProgress& progress) {
  return json::serialize(json::object{{"progress", json::object{{"stage", progress.stage}, {"done_bytes", progress.done_bytes}}}});
}

std::string encode(const ImportResult& result) {
  return json::serialize(json::object{{"result", json::object{{"content_bytes", result.counts.content_bytes},
                                                              {"entries", result.counts.entries},
                                                              {"devices_dropped", result.counts.devices_dropped},
                                                              {"attributes_dropped", result.counts.attributes_dropped},
                                                              {"owners_replaced", result.counts.owners_replaced},
                                                              {"architecture", result.architecture},
                                                              {"facts", strings(result.facts)},
                                                              {"config", model::to_json(result.config)}}}});
}

std::string encode(const Error& error) {
  return json::serialize(json::object{{"error", json::object{{"code", json::string_view(traits(error.code()).name)}, {"message", tame(error.message(), 2000)}}}});
}

Result<WorkerLine> decode_line(std::string_view line) {
  if (line.size() > kMessageLimit) return Error(ErrorCode::kTooLarge, "a line of the import worker is too long");
  DSEC_ASSIGN(const json::value value, model::parse_json(line).within("the import worker's answer"));
  WorkerLine out;
  StrictObject fields(value, "");
  if (const json::value* progress = fields.take("progress")) {
    DSEC_ASSIGN(out.progress, read_progress(*progress));
  } else if (const json::value* result = fields.take("result")) {
    DSEC_ASSIGN(out.result, read_result(*result));
  } else if (const json::value* error = fields.take("error")) {
    DSEC_ASSIGN(out.error, read_error(*error));
  } else {
    return invalid_argument("the import worker's answer says nothing");
  }
  DSEC_TRY(fields.finish());
  return out;
}

}  // namespace dsec::image
