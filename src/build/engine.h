// Engine: a plan becomes an image.
//
// Stage by stage, step by step. A step makes a part, or finds the one that an equal
// step made; the state before a command, and the result, is the parts laid over one
// another by metadata. Runs on the event loop; what blocks runs on the pool.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "build/dockerfile.h"
#include "build/step.h"
#include "build/workshop.h"
#include "image/importer.h"
#include "image/layer_store.h"
#include "sys/worker_pool.h"

namespace dsec::build {

struct BuildOrder {
  std::string project;
  std::string by;                    // id of the key
  std::string label;                 // for the records: where it comes from
  Plan plan;
  std::string dockerfile_digest;
  std::map<std::string, std::string> args;
  std::string target;                // "" = the last stage
  std::string context;               // digest of the part that it is; "" = empty
  std::shared_ptr<image::PartHolds> context_holds;
  std::vector<std::string> services;
  std::string network_fingerprint;   // of the services' definitions
  std::map<std::string, std::string> secrets;
  bool use_cache = true;
  erofs::Profile profile = erofs::Profile::kLz4;
  std::vector<image::ResidueRule> residue;  // of the operator and the project
};

// A step as the caller sees it.
struct StepView {
  enum class State { kWaiting, kRunning, kCached, kDone, kFailed };
  std::size_t line = 0;
  std::string stage;
  std::string text;
  State state = State::kWaiting;
  std::int64_t duration_ms = 0;
  std::string sandbox;
  int exit_code = 0;
};
std::string_view to_string(StepView::State state);

// Called on the event loop.
struct BuildWatch {
  std::function<void(const std::vector<StepView>& steps)> on_steps;
  std::function<void(std::size_t step, std::string_view bytes)> on_output;
};

struct BuiltImage {
  model::LayerRecord record;
  std::size_t cached_steps = 0;
  std::vector<std::string> warnings;
};

// All outlive the build.
struct EngineParts {
  Workshop& workshop;
  image::Importer& importer;
  image::LayerStore& layers;
  sys::WorkerPool& pool;
  const Clock& clock;
  Random& random;
};

class Engine {
 public:
  Engine(EngineParts parts, BuildOrder order, BuildWatch watch, std::shared_ptr<std::atomic<bool>> cancelled);
  // Once. kInvalidArgument, with the line, when a command fails. Nothing is held afterwards
  // but the result, by `holds`: the caller names it and lets go, off the event loop.
  asio::awaitable<Result<BuiltImage>> run();
  const std::shared_ptr<image::PartHolds>& holds() const { return holds_; }

 private:
  struct StageEnd {
    std::vector<std::string> stack;  // digests, lowest first
    std::vector<std::string> parts;  // those of them that builds made
    model::ImageConfig config;
    std::string key;
    std::string architecture;
  };
  Result<std::size_t> target_stage() const;
  Result<void> plan_steps();
  Result<int> stage_called(const std::string& name, std::size_t before) const;
  Result<std::string> base_of(const Stage& stage) const;
  asio::awaitable<Result<StageEnd>> begin_stage(std::size_t number);
  asio::awaitable<Result<StageEnd>> run_stage(std::size_t number);
  asio::awaitable<Result<void>> run_instruction(std::size_t stage, const Instruction& instruction, StageState& state, StageEnd& end, std::size_t view);
  asio::awaitable<Result<bool>> do_copy(std::size_t stage, CopyStep step, const Instruction& instruction, StageEnd& end);
  asio::awaitable<Result<bool>> do_run(RunStep step, const StageState& state, StageEnd& end, std::size_t view, std::size_t line);
  asio::awaitable<Result<model::LayerRecord>> run_in_sandbox(std::string sandbox, RunStep step, std::string part, std::size_t view, std::size_t line);
  asio::awaitable<Result<std::string>> source_of(const CopyStep& step, std::size_t stage);
  // One image that is all of the stack.
  asio::awaitable<Result<model::LayerRecord>> state_image(const StageEnd& end);
  asio::awaitable<Result<std::vector<std::string>>> with_secret_links(const RunStep& step, std::vector<std::string> stack);
  image::PackOptions pack_options(const RunStep& step, const std::string& part) const;
  image::ImportOptions import_options() const;
  asio::awaitable<Result<BuiltImage>> finish(StageEnd end);
  Result<void> check_secrets() const;
  void told() { if (watch_.on_steps) watch_.on_steps(steps_); }

  EngineParts parts_;
  const BuildOrder order_;
  const BuildWatch watch_;
  const std::shared_ptr<std::atomic<bool>> cancelled_;
  std::shared_ptr<image::PartHolds> holds_;
  std::map<std::string, std::string> globals_;
  std::set<std::size_t> needed_;
  std::vector<StepView> steps_;
  std::size_t next_view_ = 0;
  std::map<std::size_t, StageEnd> ends_;
  std::map<std::string, std::string> images_;  // FROM and --from words: digests
  std::map<std::vector<std::string>, std::string> states_;  // merged stacks: digests
  std::set<std::string> used_args_;
  std::vector<std::string> sandboxes_;
  std::vector<std::string> bases_;
  std::size_t cached_ = 0;
};

}  // namespace dsec::build
