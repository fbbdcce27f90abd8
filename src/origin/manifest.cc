#include "origin/manifest.h"

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "base/encoding.h"
#include "model/json.h"
#include "model/sha256.h"
#include "model/strict_object.h"

namespace dsec::origin {

namespace json = boost::json;

namespace {

constexpr std::string_view kAlgorithm = "sha256:";
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kMaxData = 16;  // the writer's limit of devices

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

std::string manifest_digest(std::string_view text) {
  return std::string(kAlgorithm) + to_hex(model::sha256(text));
}

}  // namespace dsec::origin
