#include "origin/manifest.h"

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "base/encoding.h"
#include "model/builder_key.h"
#include "model/json.h"
#include "model/sha256.h"
#include "model/strict_object.h"

namespace dsec::origin {

namespace json = boost::json;

namespace {

constexpr std::string_view kAlgorithm = "sha256:";
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kMaxData = 16;  // the writer's limit of devices

std::string digest_of(std::string_view text) { return std::string(kAlgorithm) + to_hex(model::sha256(text)); }

bool is_hex_digest(const std::string& hex) { return model::is_digest(std::string(kAlgorithm) + hex); }

Result<ManifestData> parse_data(const json::value& value) {
  ManifestData out;
  model::StrictObject fields(value, "data");
  fields.read("digest", out.hex);
  fields.read("bytes", out.bytes);
  fields.read("index", out.index_hex);
  DSEC_TRY(fields.finish());
  if (!is_hex_digest(out.hex) || !is_hex_digest(out.index_hex)) return invalid_argument("data: not a digest");
  return out;
}

Result<Manifest> parse(std::string_view text, const std::string& hex) {
  DSEC_ASSIGN(const json::value value, model::parse_json(text));
  Manifest out;
  std::uint64_t version = 0;
  model::StrictObject fields(value, "");
  fields.read("version", version);
  fields.read("metadata_bytes", out.metadata_bytes);
  const json::value* const data = fields.take("data");
  const json::value* const record = fields.take("record");
  DSEC_TRY(fields.finish());
  if (version != kVersion) return invalid_argument("of a version that is not known");
  if (data == nullptr || !data->is_array() || data->get_array().size() > kMaxData || record == nullptr) return invalid_argument("data or record is missing");
  for (const json::value& one : data->get_array()) {
    DSEC_ASSIGN(ManifestData parsed, parse_data(one));
    out.data.push_back(std::move(parsed));
  }
  DSEC_ASSIGN(out.record, model::layer_from_json(*record));
  if (out.record.digest != std::string(kAlgorithm) + hex) return invalid_argument("it speaks of another layer");
  return out;
}

}  // namespace

std::string to_text(const Manifest& manifest) {
  json::array data;
  for (const ManifestData& one : manifest.data) data.push_back(json::object{{"digest", one.hex}, {"bytes", one.bytes}, {"index", one.index_hex}});
  return json::serialize(json::object{{"version", kVersion},
                                      {"metadata_bytes", manifest.metadata_bytes},
                                      {"data", std::move(data)},
                                      {"record", model::to_json(manifest.record)}});
}

Result<Manifest> parse_manifest(std::string_view text, const std::string& hex) {
  Result<Manifest> parsed = parse(text, hex);
  if (parsed.ok()) return parsed;
  return Error(ErrorCode::kDataFault, "the manifest of layer " + hex + ": " + parsed.error().message());
}

Result<std::string> seal_manifest(const Manifest& manifest, std::string_view private_key) {
  const std::string text = to_text(manifest);
  DSEC_ASSIGN(const std::string signature, model::sign_manifest(private_key, digest_of(text)));
  return signature + "\n" + text;
}

Result<Manifest> unseal_manifest(std::string_view bytes, const std::string& hex, const std::vector<std::string>& trusted) {
  const std::size_t line = bytes.find('\n');
  if (line == std::string_view::npos) return Error(ErrorCode::kDataFault, "the manifest of layer " + hex + " has no signature");
  const std::string_view text = bytes.substr(line + 1);
  const bool known = std::any_of(trusted.begin(), trusted.end(),
                                 [&](const std::string& key) { return model::check_manifest_signature(key, digest_of(text), bytes.substr(0, line)).ok(); });
  if (!known) return Error(ErrorCode::kPermissionDenied, "the manifest of layer " + hex + " is signed by no key that this node trusts");
  return parse_manifest(text, hex);
}

}  // namespace dsec::origin
