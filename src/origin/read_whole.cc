#include "base/encoding.h"
#include "model/sha256.h"
#include "origin/origin.h"

namespace dsec::origin {

Result<std::string> read_whole(Origin& origin, const ObjectName& name, std::size_t limit, Deadline deadline) {
  const std::string doing = "read " + name.path() + " from " + origin.description();
  DSEC_ASSIGN(const std::unique_ptr<Object> object, origin.open(name, deadline).within(doing));
  if (object->size() > limit) return Error(ErrorCode::kDataFault, doing + ": it is too large to be one");
  DSEC_ASSIGN(const Buffer bytes, object->read(0, object->size(), deadline).within(doing));
  if (names_its_bytes(name.kind) && to_hex(model::sha256(bytes.view())) != name.hex)
    return Error(ErrorCode::kDataFault, doing + ": its bytes are not those that were stored");
  return std::string(bytes.view());
}

}  // namespace dsec::origin
