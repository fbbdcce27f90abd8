// The JSON forms of the model: of the REST contract, the edge's log and the
// store alike. Unknown fields are refused with the field's name.
#pragma once

#include <boost/json/fwd.hpp>

#include "base/result.h"
#include "model/layer.h"
#include "model/sandbox.h"

namespace dsec::model {

boost::json::value to_json(const Sandbox& sandbox);
boost::json::value to_json(const SandboxSpec& spec);
boost::json::value to_json(const Resources& resources);
boost::json::value to_json(const Lifetime& lifetime);
boost::json::value to_json(const Network& network);
boost::json::value to_json(const LayerRecord& layer);
boost::json::value to_json(const ImageConfig& config);
Result<ImageConfig> image_config_from_json(const boost::json::value& value);
Result<Sandbox> sandbox_from_json(const boost::json::value& value);
// `allowed_extra` are fields of the request that are not part of the spec ("wait_ms").
Result<SandboxSpec> spec_from_json(const boost::json::value& value, std::initializer_list<std::string_view> allowed_extra = {});
Result<LayerRecord> layer_from_json(const boost::json::value& value);

// For create and PATCH: fields that are absent stay as they are. `where` names
// the object in errors.
Result<void> merge_json(const boost::json::value& value, std::string_view where, Resources& out);
Result<void> merge_json(const boost::json::value& value, std::string_view where, Lifetime& out);
Result<void> merge_json(const boost::json::value& value, std::string_view where, Network& out);

}  // namespace dsec::model
