// The JSON form of a layer's record.
#include <boost/json.hpp>
#include <charconv>

#include "base/encoding.h"
#include "model/json.h"
#include "model/json_fields.h"
#include "model/json_text.h"

namespace dsec::model {

// What only builds set is left out where it is not set: a configuration is part of its
// image's digest.
json::value to_json(const ImageConfig& config) {
  json::object out{{"entrypoint", list(config.entrypoint)},
                   {"command", list(config.command)},
                   {"env", object(config.env)},
                   {"cwd", config.cwd},
                   {"user", config.user}};
  if (!config.labels.empty()) out["labels"] = object(config.labels);
  if (!config.exposed_ports.empty()) out["exposed_ports"] = list(config.exposed_ports);
  if (!config.volumes.empty()) out["volumes"] = list(config.volumes);
  if (!config.stop_signal.empty()) out["stop_signal"] = config.stop_signal;
  if (!config.shell.empty()) out["shell"] = list(config.shell);
  return out;
}

Result<ImageConfig> image_config_from_json(const json::value& value) {
  ImageConfig out;
  StrictObject fields(value, "config");
  fields.read("entrypoint", out.entrypoint);
  fields.read("command", out.command);
  fields.read("env", out.env);
  fields.read("cwd", out.cwd);
  fields.read("user", out.user);
  fields.read("labels", out.labels);
  fields.read("exposed_ports", out.exposed_ports);
  fields.read("volumes", out.volumes);
  fields.read("stop_signal", out.stop_signal);
  fields.read("shell", out.shell);
  DSEC_TRY(fields.finish());
  return out;
}

namespace {

json::array privileged_to_json(const std::vector<PrivilegedFile>& files) {
  json::array out;
  for (const PrivilegedFile& file : files) {
    json::object item;
    put_bytes(item, "path", file.path);
    item["mode"] = mode_text(file.mode);
    item["capability"] = file.capability;
    out.push_back(std::move(item));
  }
  return out;
}

Result<std::vector<PrivilegedFile>> privileged_from_json(const json::array& items) {
  std::vector<PrivilegedFile> out;
  for (const json::value& item : items) {
    PrivilegedFile file;
    std::string exact;
    std::string mode;
    StrictObject fields(item, "privileged_files");
    fields.read("path", file.path);
    fields.read("path_base64", exact);
    fields.read("mode", mode);
    fields.read("capability", file.capability);
    DSEC_TRY(fields.finish());
    if (!exact.empty()) {
      DSEC_ASSIGN(file.path, from_base64(exact));
    }
    const auto [end, failed] = std::from_chars(mode.data(), mode.data() + mode.size(), file.mode, 8);
    if (failed != std::errc() || end != mode.data() + mode.size() || file.mode > 07777) return invalid_argument("privileged_files.mode: not a mode");
    out.push_back(std::move(file));
  }
  return out;
}

json::object provenance_to_json(const Provenance& provenance) {
  return {{"sandbox", provenance.sandbox},
          {"generation", provenance.generation},
          {"project", provenance.project},
          {"by", provenance.by},
          {"parents", list(provenance.parents)}};
}

Result<Provenance> provenance_from_json(const json::value& value) {
  Provenance out;
  StrictObject fields(value, "provenance");
  fields.read("sandbox", out.sandbox);
  fields.read("generation", out.generation);
  fields.read("project", out.project);
  fields.read("by", out.by);
  fields.read("parents", out.parents);
  DSEC_TRY(fields.finish());
  return out;
}
json::object build_to_json(const BuildRecord& build) {
  return {{"dockerfile", build.dockerfile},         {"steps", list(build.steps)},       {"bases", list(build.bases)}, {"sandboxes", list(build.sandboxes)},
          {"services", list(build.services)}, {"project", build.project}, {"by", build.by}};
}

Result<BuildRecord> build_from_json(const json::value& value) {
  BuildRecord out;
  StrictObject fields(value, "build");
  fields.read("dockerfile", out.dockerfile);
  fields.read("steps", out.steps);
  fields.read("bases", out.bases);
  fields.read("sandboxes", out.sandboxes);
  fields.read("services", out.services);
  fields.read("project", out.project);
  fields.read("by", out.by);
  DSEC_TRY(fields.finish());
  return out;
}
}  // namespace

json::value to_json(const LayerRecord& layer) {
  json::object out{{"digest", layer.digest},
                   {"kind", text(to_string(layer.kind))},
                   {"size_bytes", layer.size_bytes},
                   {"content_bytes", layer.content_bytes},
                   {"entries", layer.entries},
                   {"setuid_files", layer.setuid_files},
                   {"capability_files", layer.capability_files},
                   {"privileged_files", privileged_to_json(layer.privileged_files)},
                   {"profile", layer.profile},
                   {"architecture", layer.architecture},
                   {"source", layer.source},
                   {"created_at", time_or_null(layer.created_at_ms)},
                   {"config", to_json(layer.config)},
                   {"parts", list(layer.parts)},
                   {"diff_id", layer.diff_id}};
  if (layer.provenance) out["provenance"] = provenance_to_json(*layer.provenance);
  if (layer.build) out["build"] = build_to_json(*layer.build);
  return out;
}

Result<LayerRecord> layer_from_json(const json::value& value) {
  LayerRecord layer;
  StrictObject fields(value, "");
  fields.read("digest", layer.digest);
  fields.read_enum("kind", layer.kind, &parse_layer_kind);
  fields.read("size_bytes", layer.size_bytes);
  fields.read("content_bytes", layer.content_bytes);
  fields.read("entries", layer.entries);
  fields.read("setuid_files", layer.setuid_files);
  fields.read("capability_files", layer.capability_files);
  if (const json::array* files = fields.take_array("privileged_files")) {
    Result<std::vector<PrivilegedFile>> read = privileged_from_json(*files);
    if (read.ok()) layer.privileged_files = std::move(read).value();
    else fields.fail(std::move(read).error());
  }
  fields.read("profile", layer.profile);
  fields.read("architecture", layer.architecture);
  fields.read("source", layer.source);
  read_time(fields, "created_at", layer.created_at_ms);
  fields.read("parts", layer.parts);
  fields.read("diff_id", layer.diff_id);
  if (const json::value* config = fields.take("config")) {
    Result<ImageConfig> read = image_config_from_json(*config);
    if (read.ok()) layer.config = std::move(read).value();
    else fields.fail(std::move(read).error());
  }
  if (const json::value* provenance = fields.take("provenance")) {
    Result<Provenance> read = provenance_from_json(*provenance);
    if (read.ok()) layer.provenance = std::move(read).value();
    else fields.fail(std::move(read).error());
  }
  if (const json::value* build = fields.take("build")) {
    Result<BuildRecord> read = build_from_json(*build);
    if (read.ok()) layer.build = std::move(read).value();
    else fields.fail(std::move(read).error());
  }
  DSEC_TRY(fields.finish());
  if (!is_digest(layer.digest)) return invalid_argument("digest: not a sha256 digest");
  return layer;
}

}  // namespace dsec::model
