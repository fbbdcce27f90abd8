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
constexpr std::array kModes = {ModeName{ImportMode::kTar, "tar"},         ModeName{ImportMode::kArchive, "archive"}, ModeName{ImportMode::kDecompress, "decompress"},
                               ModeName{ImportMode::kPart, "part"},       ModeName{ImportMode::kMerge, "merge"},     ModeName{ImportMode::kInspect, "inspect"},
                               ModeName{ImportMode::kFetch, "fetch"},     ModeName{ImportMode::kDebian, "debian"},   ModeName{ImportMode::kProbe, "probe"},
                               ModeName{ImportMode::kUpper, "upper"},   ModeName{ImportMode::kCopy, "copy"}};
constexpr std::size_t kLongestPath = 200;

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

// What a worker may say about itself, its input and the registry that it asked.
// Anything else (a refused key of ours) it could only make up.
constexpr std::array kWorkerCodes = {ErrorCode::kInvalidArgument, ErrorCode::kTooLarge,    ErrorCode::kExhausted, ErrorCode::kInternal,
                                     ErrorCode::kDataFault,       ErrorCode::kUnsupported, ErrorCode::kUnavailable, ErrorCode::kConflict,
                                     ErrorCode::kNotFound,        ErrorCode::kPermissionDenied};

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

json::array numbers(const std::vector<std::uint64_t>& values) {
  json::array out;
  for (const std::uint64_t value : values) out.emplace_back(value);
  return out;
}

void read_numbers(StrictObject& fields, const char* name, std::vector<std::uint64_t>& out) {
  const json::array* values = fields.take_array(name);
  if (values == nullptr) return;
  for (const json::value& value : *values) {
    boost::system::error_code failed;
    out.push_back(value.to_number<std::uint64_t>(failed));
    if (failed) return fields.fail(std::string(name) + ": not a list of numbers");
  }
}

void read_config(StrictObject& fields, model::ImageConfig& out) {
  const json::value* config = fields.take("config");
  if (config == nullptr) return;
  Result<model::ImageConfig> read = model::image_config_from_json(*config);
  if (read.ok()) out = std::move(read).value();
  else fields.fail(std::move(read).error());
}

json::array layers_json(const std::vector<ArchiveLayer>& layers) {
  json::array out;
  for (const ArchiveLayer& layer : layers) out.push_back(json::object{{"path", layer.path}, {"digest", layer.digest}, {"diff_id", layer.diff_id}});
  return out;
}

Result<std::vector<ArchiveLayer>> read_layers(const json::array& values) {
  std::vector<ArchiveLayer> out;
  if (values.size() > kMostLayers) return Error(ErrorCode::kTooLarge, "the image has more than 512 layers");
  for (const json::value& value : values) {
    ArchiveLayer layer;
    StrictObject fields(value, "layers");
    fields.read("path", layer.path);
    fields.read("digest", layer.digest);
    fields.read("diff_id", layer.diff_id);
    DSEC_TRY(fields.finish());
    if (layer.path.empty() || layer.path.size() > kLongestPath || layer.path.find('\0') != std::string::npos) return invalid_argument("the name of a layer's file is too long");
    if (!model::is_digest(layer.diff_id) || (!layer.digest.empty() && !model::is_digest(layer.digest))) return Error(ErrorCode::kUnsupported, "a layer is not named by a sha256 digest");
    out.push_back(std::move(layer));
  }
  return out;
}

// Names are bytes, and what is told of them was read by a worker.
json::array findings_to_json(const std::vector<ResidueFinding>& findings) {
  json::array out;
  for (const ResidueFinding& finding : findings) out.push_back(json::object{{"path_base64", to_base64(finding.path)}, {"rule", finding.rule}});
  return out;
}

Result<std::vector<ResidueFinding>> read_findings(const json::array& items) {
  std::vector<ResidueFinding> out;
  for (const json::value& item : items) {
    std::string path;
    ResidueFinding finding;
    StrictObject fields(item, "residue");
    fields.read("path_base64", path);
    fields.read("rule", finding.rule);
    DSEC_TRY(fields.finish());
    DSEC_ASSIGN(finding.path, from_base64(path));
    out.push_back(std::move(finding));
  }
  return out;
}

json::object to_json(const UpperRequest& upper) {
  return {{"first_id", upper.first_id}, {"ids", upper.ids},         {"run_as", upper.run_as},          {"remove", strings(upper.remove)},
          {"allow", strings(upper.allow)}, {"project", upper.project}, {"parents", strings(upper.parents)}};
}

Result<UpperRequest> read_upper(const json::value& value) {
  UpperRequest out;
  std::uint64_t first_id = 0;
  std::uint64_t ids = 0;
  std::uint64_t run_as = 0;
  StrictObject fields(value, "upper");
  fields.read("first_id", first_id);
  fields.read("ids", ids);
  fields.read("run_as", run_as);
  fields.read("remove", out.remove);
  fields.read("allow", out.allow);
  fields.read("project", out.project);
  fields.read("parents", out.parents);
  DSEC_TRY(fields.finish());
  for (const std::uint64_t id : {first_id, ids, run_as}) {
    if (id > UINT32_MAX) return invalid_argument("upper: an id that is none");
  }
  if (run_as == 0) return invalid_argument("upper: run_as is root");
  out.first_id = static_cast<std::uint32_t>(first_id);
  out.ids = static_cast<std::uint32_t>(ids);
  out.run_as = static_cast<std::uint32_t>(run_as);
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
  fields.read("removed", out.counts.removed);
  if (const json::array* findings = fields.take_array("residue")) {
    Result<std::vector<ResidueFinding>> read = read_findings(*findings);
    if (read.ok()) out.residue = std::move(read).value();
    else fields.fail(std::move(read).error());
  }
  fields.read("architecture", out.architecture);
  fields.read("facts", out.facts);
  read_config(fields, out.config);
  if (const json::array* layers = fields.take_array("layers")) {
    DSEC_ASSIGN(out.layers, read_layers(*layers));
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

std::string encode(const std::vector<ResidueRule>& rules) {
  json::array out;
  for (const ResidueRule& rule : rules) out.push_back(json::object{{"name", rule.name}, {"text_base64", to_base64(rule.text)}});
  return json::serialize(json::object{{"rules", std::move(out)}});
}

Result<std::vector<ResidueRule>> decode_residue_rules(std::string_view text) {
  DSEC_ASSIGN(const json::value value, model::parse_json(text));
  std::vector<ResidueRule> rules;
  StrictObject fields(value, "");
  if (const json::array* items = fields.take_array("rules")) {
    for (const json::value& item : *items) {
      ResidueRule rule;
      std::string bytes;
      StrictObject inner(item, "rules");
      inner.read("name", rule.name);
      inner.read("text_base64", bytes);
      DSEC_TRY(inner.finish());
      DSEC_ASSIGN(rule.text, from_base64(bytes));
      DSEC_TRY(check_residue_rule(rule));
      rules.push_back(std::move(rule));
    }
  }
  DSEC_TRY(fields.finish());
  return rules;
}

std::string encode(const ImportRequest& request) {
  json::object out{{"mode", json::string_view(to_string(request.mode))},
                   {"kind", json::string_view(model::to_string(request.kind))},
                   {"at", request.at},
                   {"max_bytes", request.max_bytes},
                   {"max_entries", request.max_entries},
                   {"profile", json::string_view(to_string(request.profile))},
                   {"memory_bytes", request.memory_bytes},
                   {"suite", request.suite},
                   {"packages", strings(request.packages)},
                   {"architecture", request.architecture},
                   {"diff_id", request.diff_id},
                   {"stack", numbers(request.stack)},
                   {"data_files", numbers(request.data_files)},
                   {"config", model::to_json(request.config)},
                   {"reference", request.reference},
                   {"known", strings(request.known)},
                   {"plain_http", request.plain_http},
                   {"hosts", request.hosts},
                   {"authorities", request.authorities}};
  if (request.mode == ImportMode::kUpper || request.upper.run_as != 0) out["upper"] = to_json(request.upper);
  return json::serialize(out);
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
  fields.read("architecture", out.architecture);
  fields.read("diff_id", out.diff_id);
  read_numbers(fields, "stack", out.stack);
  read_numbers(fields, "data_files", out.data_files);
  read_config(fields, out.config);
  if (const json::value* upper = fields.take("upper")) {
    Result<UpperRequest> read = read_upper(*upper);
    if (read.ok()) out.upper = std::move(read).value();
    else fields.fail(std::move(read).error());
  }
  fields.read("reference", out.reference);
  fields.read("known", out.known);
  fields.read("plain_http", out.plain_http);
  fields.read("hosts", out.hosts);
  fields.read("authorities", out.authorities);
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
                                                              {"removed", result.counts.removed},
                                                              {"residue", findings_to_json(result.residue)},
                                                              {"architecture", result.architecture},
                                                              {"facts", strings(result.facts)},
                                                              {"layers", layers_json(result.layers)},
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
