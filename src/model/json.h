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
boost::json::value to_json(const LayerRecord& layer);
boost::json::value to_json(const ImageConfig& config);
Result<Sandbox> sandbox_from_json(const boost::json::value& value);
// `allowed_extra` are fields of the request that are not part of the spec ("wait_ms").
Result<SandboxSpec> spec_from_json(const boost::json::value& value, std::initializer_list<std::string_view> allowed_extra = {});
Result<LayerRecord> layer_from_json(const boost::json::value& value);

}  // namespace dsec::model
