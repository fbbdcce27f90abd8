// Operations: calls that outlast a request, followed by id.
//
// Their ends are stored, and their beginnings before the caller hears of them. One
// that a restart interrupts has left nothing behind and is over then, as
// `unavailable`: the same call may be made again.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apiserver/catalogue.h"
#include "base/clock.h"
#include "base/result.h"

namespace dsec::apiserver {

namespace asio = boost::asio;

struct OperationProgress {
  std::string stage;
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t layer = 0;   // of an image: the one at work, from 1; 0 = none
  std::uint64_t layers = 0;
};

// What the commands of a build print, by offset; the last MiB is kept.
class OperationOutput {
 public:
  struct Piece {
    std::uint64_t offset = 0;
    std::size_t step = 0;
    std::string bytes;
  };
  void add(std::size_t step, std::string_view bytes);
  // The pieces at and behind `offset`; what is older than all that is kept is gone.
  std::vector<Piece> from(std::uint64_t offset) const;
  std::uint64_t end() const { return end_; }

 private:
  std::deque<Piece> pieces_;
  std::uint64_t end_ = 0;
  std::size_t kept_bytes_ = 0;
};

// Touched on the event loop only, but for `cancelled`.
struct Operation {
  std::string id;
  std::string project;
  std::string kind;  // "import"
  std::int64_t created_at_ms = 0;
  OperationProgress progress;
  boost::json::object build;  // of kind "build": its steps
  OperationOutput output;     // of it
  std::optional<boost::json::value> result;
  std::optional<Error> error;
  std::atomic<bool> cancelled{false};
  std::unique_ptr<asio::steady_timer> changed;  // cancelled by every change: wakes who waits

  bool finished() const { return result.has_value() || error.has_value(); }
  std::string_view state() const;
};

class Operations {
 public:
  // Takes up what an earlier life of the server has stored; `catalogue` outlives this.
  Operations(asio::io_context& io, Catalogue& catalogue);
  asio::awaitable<Result<std::shared_ptr<Operation>>> start(std::string id, std::string project, std::string kind, std::int64_t now_ms);
  // kNotFound for another project's too.
  Result<std::shared_ptr<Operation>> find(const std::string& project, const std::string& id) const;
  void touch(Operation& operation) { operation.changed->cancel(); }
  // Those of this kind that the last life of the server left behind.
  struct CutOff {
    std::string id;
    std::string project;
  };
  std::vector<CutOff> cut_off(std::string_view kind) const;
  // The server stops: their work is given up, and whoever waits for one looks again.
  // Their records stay as they are; the next start says that they were interrupted.
  void give_up();
  asio::awaitable<void> finish(std::shared_ptr<Operation> operation, Result<boost::json::value> outcome);
  // Until the operation has changed or `by` has come.
  asio::awaitable<void> wait(std::shared_ptr<Operation> operation, Instant by);

 private:
  std::shared_ptr<Operation> add(std::string id, std::string project, std::string kind, std::int64_t created_at_ms);
  void take_up(const store::OperationRecord& earlier);
  void remember_end(const std::string& id);

  asio::io_context& io_;
  Catalogue& catalogue_;
  std::map<std::string, std::shared_ptr<Operation>> operations_;
  std::vector<std::string> cut_off_;  // ids
  std::deque<std::string> finished_;  // oldest first; the last 1,000 are remembered
};

boost::json::value to_json(const Operation& operation);

}  // namespace dsec::apiserver
