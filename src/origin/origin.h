// Origin: a place outside this node where layers are kept, shared by all nodes.
//
// Objects are immutable and published once. Nothing that a store says is
// believed: sizes and bytes are checked by who reads (chunk_reader.h). Every
// call may be made by any thread, blocks, and returns by its deadline: with
// kDeadlineExceeded when the store did not answer, with kExhausted when too many
// calls already wait for a store that does not. Reads, publish and remove are
// idempotent: after an error the same call may be made again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "origin/buffer.h"
#include "origin/content.h"
#include "origin/object_name.h"

namespace dsec::origin {

// An object that was there when it was opened. Keep it: an open is the slow
// call of most stores. Outlived by its origin.
class Object {
 public:
  virtual ~Object() = default;
  // As the store said at the open.
  virtual std::uint64_t size() const = 0;
  // Exactly [offset, offset + length), which lies inside size(); a store that
  // gives less, more or something else is kDataFault. After an error the next
  // read starts afresh, on a new handle or connection.
  virtual Result<Buffer> read(std::uint64_t offset, std::size_t length, Deadline deadline) const = 0;
};

struct ObjectList {
  std::vector<ObjectName> names;  // by path, ascending
  bool complete = true;           // else go on after the last one
};

// What a publisher that was killed has left: bytes without a name.
struct Leftover {
  std::string id;                // the store's own
  std::optional<ObjectName> of;  // what it was to become, where that can be told
  Duration age{};                // since it was begun or last grew, by the store's own clock
  std::uint64_t bytes = 0;
};

class Origin {
 public:
  virtual ~Origin() = default;
  // kNotFound when there is no such object.
  virtual Result<std::unique_ptr<Object>> open(const ObjectName& name, Deadline deadline) = 0;
  // Whole or not at all, and durable after success. Success too when an equal
  // object is there; kConflict when another one is, which stays as it is.
  // kInvalidArgument when `name` names its bytes and the content has another digest.
  virtual Result<void> publish(const ObjectName& name, const Content& content, Deadline deadline) = 0;
  // At most `limit` objects, 1 or more, behind the path `after` ("" = from the
  // start). What is not an object's name is left out.
  virtual Result<ObjectList> list(const std::string& after, std::size_t limit, Deadline deadline) = 0;
  // Success when it was not there.
  virtual Result<void> remove(const ObjectName& name, Deadline deadline) = 0;
  // What is being published now, by anybody, and what was never ended: which is
  // which the store does not know (collection.h). At most kMaxLeftovers of them.
  // kUnsupported by a store that cannot tell.
  static constexpr std::size_t kMaxLeftovers = 10'000;
  virtual Result<std::vector<Leftover>> leftovers(Deadline deadline) = 0;
  // Its publisher, should it live, gets an error. Success when it was not there.
  virtual Result<void> remove_leftover(const Leftover& leftover, Deadline deadline) = 0;
  // For people; holds no credentials.
  virtual std::string description() const = 0;
};

// All of a small object. kDataFault when it is larger than `limit`, or when
// `name` names its bytes and they have another digest.
Result<std::string> read_whole(Origin& origin, const ObjectName& name, std::size_t limit, Deadline deadline);

}  // namespace dsec::origin
