#include "build/engine.h"

#include <algorithm>
#include <charconv>

#include "base/encoding.h"
#include "build/cache_key.h"
#include "net/blocking.h"

namespace dsec::build {

namespace {

constexpr std::size_t kToldOutput = 2000;

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// A pattern that means the path itself.
std::string literal_pattern(const std::string& path) {
  std::string out;
  for (const char c : path) {
    if (c == '*' || c == '?' || c == '[' || c == ']' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string where(std::size_t line) { return "line " + std::to_string(line); }

}  // namespace

std::string_view to_string(StepView::State state) {
  switch (state) {
    case StepView::State::kWaiting: return "waiting";
    case StepView::State::kRunning: return "running";
    case StepView::State::kCached: return "cached";
    case StepView::State::kDone: return "done";
    case StepView::State::kFailed: return "failed";
  }
  return "waiting";
}

Engine::Engine(EngineParts parts, BuildOrder order, BuildWatch watch, std::shared_ptr<std::atomic<bool>> cancelled)
    : parts_(parts), order_(std::move(order)), watch_(std::move(watch)), cancelled_(std::move(cancelled)), holds_(std::make_shared<image::PartHolds>(parts.layers)) {}

image::ImportOptions Engine::import_options() const {
  image::ImportOptions out;
  out.profile = order_.profile;
  out.source_label = order_.label;
  out.part_holds = holds_.get();
  out.cancelled = cancelled_.get();
  return out;
}

Result<std::string> Engine::base_of(const Stage& stage) const {
  Result<std::string> base = expand_from(stage.base, globals_, order_.plan.escape);
  if (base.ok() && base->empty()) base = invalid_argument("FROM " + stage.base + " names no image");
  return std::move(base).within(where(stage.line));
}

// Of the stages before `before`: a number or a name; -1 when it is none.
Result<int> Engine::stage_called(const std::string& name, std::size_t before) const {
  std::size_t number = 0;
  const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (failed == std::errc() && end == name.data() + name.size()) {
    if (number >= before) return invalid_argument("there is no stage " + name + " before this one");
    return static_cast<int>(number);
  }
  for (std::size_t i = 0; i < before; i++) {
    if (order_.plan.stages[i].name == lower(name)) return static_cast<int>(i);
  }
  return -1;
}

Result<std::size_t> Engine::target_stage() const {
  if (order_.target.empty()) return order_.plan.stages.size() - 1;
  DSEC_ASSIGN(const int found, stage_called(order_.target, order_.plan.stages.size()).within("target"));
  if (found < 0) return invalid_argument("target: no stage is called " + order_.target.substr(0, 100));
  return static_cast<std::size_t>(found);
}

// Which stages the target needs, and the list of all their steps.
Result<void> Engine::plan_steps() {
  DSEC_ASSIGN(const std::size_t target, target_stage());
  std::vector<std::size_t> open = {target};
  while (!open.empty()) {
    const std::size_t number = open.back();
    open.pop_back();
    if (!needed_.insert(number).second) continue;
    const Stage& stage = order_.plan.stages[number];
    const auto need = [&](const std::string& name, std::size_t line) -> Result<void> {
      DSEC_ASSIGN(const int found, stage_called(name, number).within(where(line)));
      if (found >= 0) open.push_back(static_cast<std::size_t>(found));
      return {};
    };
    DSEC_ASSIGN(const std::string base, base_of(stage));
    if (const bool number_only = base.find_first_not_of("0123456789") == std::string::npos; !number_only) DSEC_TRY(need(base, stage.line));
    for (const Instruction& instruction : stage.instructions) {
      const std::string* from = instruction.flag("from");
      if (from == nullptr) continue;
      if (from->find('$') == std::string::npos) {
        DSEC_TRY(need(*from, instruction.line));
      } else {  // what it says is known when its turn comes
        for (std::size_t i = 0; i < number; i++) open.push_back(i);
      }
    }
  }
  for (const std::size_t number : needed_) {
    const Stage& stage = order_.plan.stages[number];
    const std::string name = stage.name.empty() ? std::to_string(number) : stage.name;
    DSEC_ASSIGN(const std::string base, base_of(stage));
    steps_.push_back({.line = stage.line, .stage = name, .text = "FROM " + to_utf8(base, nullptr), .sandbox = {}});
    for (const Instruction& instruction : stage.instructions) steps_.push_back({.line = instruction.line, .stage = name, .text = instruction.summary(), .sandbox = {}});
  }
  return {};
}

Result<void> Engine::check_secrets() const {
  for (const auto& [id, text] : order_.secrets) {
    if (text.size() < image::kMinResidueText) return invalid_argument("secret " + id + ": shorter than 8 bytes; what cannot be looked for in layers is given to no command");
  }
  return {};
}

asio::awaitable<Result<BuiltImage>> Engine::run() {
  DSEC_CO_TRY(check_secrets());
  DSEC_CO_ASSIGN(globals_, global_args(order_.plan, order_.args));
  DSEC_CO_TRY(plan_steps());
  told();
  StageEnd last;
  for (const std::size_t number : needed_) {
    DSEC_CO_ASSIGN(last, co_await run_stage(number));
    ends_[number] = last;
  }
  co_return co_await finish(ends_.at(*target_stage()));
}

asio::awaitable<Result<Engine::StageEnd>> Engine::begin_stage(std::size_t number) {
  const Stage& stage = order_.plan.stages[number];
  DSEC_CO_ASSIGN(const std::string base, base_of(stage));
  StageEnd end;
  end.architecture = model::node_architecture();
  if (!stage.platform.empty()) {
    std::map<std::string, std::string> known = globals_;
    for (const char* name : {"BUILDPLATFORM", "TARGETPLATFORM"}) known.emplace(name, "linux/" + end.architecture);
    DSEC_CO_ASSIGN(const std::string platform, expand_from(stage.platform, known, order_.plan.escape));
    if (platform != "linux/" + end.architecture) co_return Error(ErrorCode::kUnsupported, "FROM --platform=" + platform.substr(0, 60) + ": this node builds linux/" + end.architecture);
  }
  CacheKey key;
  key.add("dsec build 1").add(order_.project).add(end.architecture);
  if (base == "scratch") {
    end.key = key.add("scratch").name();
    co_return end;
  }
  if (const bool number_only = base.find_first_not_of("0123456789") == std::string::npos; !number_only) {
    DSEC_CO_ASSIGN(const int earlier, stage_called(base, number));
    if (earlier >= 0) co_return ends_.at(static_cast<std::size_t>(earlier));
  }
  DSEC_CO_ASSIGN(const model::LayerRecord image, co_await parts_.workshop.find_image(base));
  if (image.architecture != end.architecture) co_return Error(ErrorCode::kUnsupported, base + " is for " + image.architecture + ", and this node builds " + end.architecture);
  DSEC_CO_TRY(parts_.layers.hold_layer(image.digest, *holds_));
  if (std::find(bases_.begin(), bases_.end(), image.digest) == bases_.end()) bases_.push_back(image.digest);
  end.stack = {image.digest};
  end.parts = image.parts;
  end.config = image.config;
  end.key = key.add("image").add(image.digest).name();
  co_return end;
}

asio::awaitable<Result<Engine::StageEnd>> Engine::run_stage(std::size_t number) {
  const Stage& stage = order_.plan.stages[number];
  StepView& first = steps_[next_view_++];
  first.state = StepView::State::kRunning;
  told();
  Result<StageEnd> begun = co_await begin_stage(number);
  if (!begun.ok()) {
    first.state = StepView::State::kFailed;
    told();
    co_return std::move(begun).within(where(stage.line));
  }
  first.state = StepView::State::kDone;
  StageEnd end = std::move(begun).value();
  StageState state;
  state.escape = order_.plan.escape;
  state.config = end.config;
  state.offered = globals_;
  for (const char* side : {"TARGET", "BUILD"}) {
    state.offered[std::string(side) + "OS"] = "linux";
    state.offered[std::string(side) + "ARCH"] = model::node_architecture();
    state.offered[std::string(side) + "PLATFORM"] = "linux/" + std::string(model::node_architecture());
  }
  for (const auto& [name, value] : order_.args) state.offered[name] = value;
  for (const Instruction& instruction : stage.instructions) {
    const std::size_t view = next_view_++;
    if (cancelled_->load()) co_return Error(ErrorCode::kCancelled, "the build was cancelled");
    steps_[view].state = StepView::State::kRunning;
    told();
    const Instant begun_at = parts_.clock.now();
    const Result<void> done = co_await run_instruction(number, instruction, state, end, view);
    steps_[view].duration_ms = std::chrono::duration_cast<std::chrono::milliseconds>(parts_.clock.now() - begun_at).count();
    if (!done.ok()) {
      steps_[view].state = StepView::State::kFailed;
      told();
      if (cancelled_->load()) co_return Error(ErrorCode::kCancelled, "the build was cancelled");
      co_return done.error();
    }
    if (steps_[view].state == StepView::State::kRunning) steps_[view].state = StepView::State::kDone;
    told();
  }
  end.config = state.config;
  for (const auto& [name, value] : state.args) used_args_.insert(name);
  co_return end;
}

asio::awaitable<Result<void>> Engine::run_instruction(std::size_t stage, const Instruction& instruction, StageState& state, StageEnd& end, std::size_t view) {
  DSEC_CO_ASSIGN(Step step, resolve(instruction, state));
  Result<bool> cached = false;
  if (CopyStep* copy = std::get_if<CopyStep>(&step)) {
    cached = (co_await do_copy(stage, std::move(*copy), instruction, end)).within(where(instruction.line) + ": " + instruction.name);
  } else if (RunStep* run = std::get_if<RunStep>(&step)) {
    cached = co_await do_run(std::move(*run), state, end, view, instruction.line);
  } else {
    co_return Result<void>();
  }
  if (!cached.ok()) co_return std::move(cached).error();
  if (*cached) {
    steps_[view].state = StepView::State::kCached;
    cached_++;
  }
  co_return Result<void>();
}

asio::awaitable<Result<std::string>> Engine::source_of(const CopyStep& step, std::size_t stage) {
  if (step.spec.sources.empty()) co_return std::string();
  if (step.from.empty()) {
    if (order_.context.empty()) co_return invalid_argument("there is no context to copy from");
    co_return order_.context;
  }
  DSEC_CO_ASSIGN(const int earlier, stage_called(step.from, stage));
  if (earlier >= 0) {
    DSEC_CO_ASSIGN(const model::LayerRecord image, co_await state_image(ends_.at(static_cast<std::size_t>(earlier))));
    co_return image.digest;
  }
  if (const auto known = images_.find(step.from); known != images_.end()) co_return known->second;
  DSEC_CO_ASSIGN(const model::LayerRecord image, co_await parts_.workshop.find_image(step.from));
  DSEC_CO_TRY(parts_.layers.hold_layer(image.digest, *holds_));
  images_[step.from] = image.digest;
  co_return image.digest;
}

asio::awaitable<Result<bool>> Engine::do_copy(std::size_t stage, CopyStep step, const Instruction& instruction, StageEnd& end) {
  image::CopyOptions options;
  DSEC_CO_ASSIGN(options.source, co_await source_of(step, stage));
  options.below = end.stack;
  CacheKey before;
  before.add("copy").add(end.key).add(instruction.name).add(step.spec.destination).add(step.spec.owner).add(step.spec.mode ? std::to_string(*step.spec.mode) : "").add(step.spec.keep_owners ? "keep" : "");
  options.identity = before.name();
  options.spec = std::move(step.spec);
  options.name = [identity = options.identity](const std::string& digest) { return CacheKey().add("copied").add(identity).add(digest).name(); };
  options.reuse = order_.use_cache;
  options.layer = import_options();
  DSEC_CO_ASSIGN(image::CopiedPart copied, co_await net::on_pool(parts_.pool, [importer = &parts_.importer, options, holds = holds_] { return importer->copy(options); }));
  end.key = copied.part_id;
  if (!copied.record) co_return false;
  end.stack.push_back(copied.record->digest);
  end.parts.push_back(copied.record->digest);
  co_return copied.reused;
}

asio::awaitable<Result<model::LayerRecord>> Engine::state_image(const StageEnd& end) {
  if (const auto known = states_.find(end.stack); known != states_.end()) co_return parts_.layers.find(known->second);
  if (end.stack.size() == 1) {
    DSEC_CO_ASSIGN(model::LayerRecord only, parts_.layers.find(end.stack[0]));
    if (only.diff_id.empty()) co_return only;
  }
  image::MergeOptions options;
  options.layers = end.stack;
  options.layer = import_options();
  options.layer.architecture = end.architecture;
  options.layer.part_id = "state:" + to_base32(parts_.random.bytes(15));
  DSEC_CO_ASSIGN(const model::LayerRecord merged, co_await net::on_pool(parts_.pool, [importer = &parts_.importer, options, holds = holds_] { return importer->merge(options); }));
  states_[end.stack] = merged.digest;
  co_return merged;
}

// /run/secrets/ID leads to a memory of the sandbox; the links lie below its upper.
asio::awaitable<Result<std::vector<std::string>>> Engine::with_secret_links(const RunStep& step, std::vector<std::string> stack) {
  image::CopyOptions options;
  for (const SecretMount& secret : step.secrets) {
    if (order_.secrets.contains(secret.id)) options.spec.links.push_back({secret.target, "/dev/shm/.dsec-secret-" + secret.id});
  }
  if (options.spec.links.empty()) co_return stack;
  options.spec.destination = "/";
  options.below = stack;
  options.identity = "links:" + to_base32(parts_.random.bytes(15));
  options.name = [identity = options.identity](const std::string&) { return identity; };
  options.reuse = false;
  options.layer = import_options();
  DSEC_CO_ASSIGN(const image::CopiedPart links, co_await net::on_pool(parts_.pool, [importer = &parts_.importer, options, holds = holds_] { return importer->copy(options); }));
  stack.push_back(links.record->digest);
  co_return stack;
}

asio::awaitable<Result<bool>> Engine::do_run(RunStep step, const StageState& state, StageEnd& end, std::size_t view, std::size_t line) {
  for (const SecretMount& secret : step.secrets) {
    if (secret.required && !order_.secrets.contains(secret.id)) co_return invalid_argument(where(line) + ": the secret " + secret.id + " is required and was not given");
  }
  const bool network = step.network && !order_.services.empty();
  CacheKey key;
  key.add("run").add(end.key).add_all(step.argv).add(step.script).add_all(step.args).add_all(state.config.env).add(state.config.user).add(state.config.cwd);
  key.add(network ? order_.network_fingerprint : "").add_all(step.scratch);
  for (const SecretMount& secret : step.secrets) key.add("secret").add(secret.id).add(secret.target).add(std::to_string(secret.mode)).add(std::to_string(secret.uid)).add(order_.secrets.contains(secret.id) ? "given" : "");
  const std::string part = key.name();
  end.key = part;
  if (order_.use_cache) {
    if (const auto known = parts_.layers.find_build_part(part, *holds_)) {
      end.stack.push_back(known->digest);
      end.parts.push_back(known->digest);
      co_return true;
    }
  }
  StageEnd before = end;
  DSEC_CO_ASSIGN(before.stack, co_await with_secret_links(step, before.stack));
  DSEC_CO_ASSIGN(const model::LayerRecord image, co_await state_image(before));
  model::Network reach;
  if (network) {
    reach.mode = model::NetworkMode::kProxy;
    reach.services = order_.services;
  }
  Result<std::string> sandbox = co_await parts_.workshop.start(image, state.config, reach);
  if (!sandbox.ok()) co_return std::move(sandbox).within(where(line)).error();
  steps_[view].sandbox = *sandbox;
  sandboxes_.push_back(*sandbox);
  told();
  Result<model::LayerRecord> packed = co_await run_in_sandbox(*sandbox, std::move(step), part, view, line);
  co_await parts_.workshop.end(*sandbox);
  if (!packed.ok()) co_return std::move(packed).error();
  end.stack.push_back(packed->digest);
  end.parts.push_back(packed->digest);
  co_return false;
}

asio::awaitable<Result<model::LayerRecord>> Engine::run_in_sandbox(std::string sandbox, RunStep step, std::string part, std::size_t view, std::size_t line) {
  if (cancelled_->load()) co_return Error(ErrorCode::kCancelled, "the build was cancelled");
  for (const SecretMount& secret : step.secrets) {
    const auto given = order_.secrets.find(secret.id);
    if (given == order_.secrets.end()) continue;
    FileOrder file{.path = "/dev/shm/.dsec-secret-" + secret.id, .bytes = given->second, .uid = secret.uid, .mode = secret.mode};
    DSEC_CO_TRY((co_await parts_.workshop.write_file(sandbox, std::move(file))).within(where(line)));
  }
  if (!step.script.empty()) {
    FileOrder file{.path = std::string(kScriptPath), .bytes = step.script, .uid = 0, .mode = 0755};
    DSEC_CO_TRY((co_await parts_.workshop.write_file(sandbox, std::move(file))).within(where(line)));
  }
  auto last = std::make_shared<std::string>();
  RunOrder order{.argv = step.argv, .env = step.args, .on_output = {}};
  order.on_output = [this, view, last](std::string_view bytes) {
    last->append(bytes);
    if (last->size() > 2 * kToldOutput) last->erase(0, last->size() - kToldOutput);
    if (watch_.on_output) watch_.on_output(view, bytes);
  };
  Result<RunEnd> run = co_await parts_.workshop.run(sandbox, std::move(order));
  if (cancelled_->load()) co_return Error(ErrorCode::kCancelled, "the build was cancelled");
  if (!run.ok()) co_return std::move(run).within(where(line)).error();
  steps_[view].exit_code = run->exit_code;
  if (!run->succeeded()) {
    if (last->size() > kToldOutput) last->erase(0, last->size() - kToldOutput);
    std::string text = where(line) + ": " + steps_[view].text + ": " + (run->why.empty() ? "exit code " + std::to_string(run->exit_code) : run->why);
    if (!last->empty()) text += "\n" + to_utf8(*last, nullptr);
    co_return Error(run->infra ? ErrorCode::kUnavailable : ErrorCode::kInvalidArgument, text);
  }
  Result<model::LayerRecord> packed = co_await parts_.workshop.pack(sandbox, pack_options(step, part));
  co_return std::move(packed).within(where(line));
}

image::PackOptions Engine::pack_options(const RunStep& step, const std::string& part) const {
  image::PackOptions options;
  options.layer = import_options();
  options.layer.kind = model::LayerKind::kDiff;
  options.layer.part_id = part;
  options.remove = {"/run/secrets", "/run/dsec"};  // what the platform puts there
  options.residue = order_.residue;
  for (const std::string& target : step.scratch) options.remove.push_back(literal_pattern(target));
  for (const SecretMount& secret : step.secrets) {
    options.remove.push_back(literal_pattern(secret.target));
    const auto given = order_.secrets.find(secret.id);
    if (given == order_.secrets.end()) continue;
    // The whole of it, or the middle of a long one, and every line that is long enough.
    std::string whole = given->second;
    while (whole.ends_with('\n') || whole.ends_with('\r')) whole.pop_back();
    if (whole.size() > image::kMaxResidueText) whole = whole.substr((whole.size() - image::kMaxResidueText) / 2, image::kMaxResidueText);
    if (whole.size() >= image::kMinResidueText) options.residue.push_back({"secret." + secret.id, whole});
    constexpr std::size_t kTellingLine = 16;
    for (std::size_t at = 0; at < given->second.size();) {
      const std::size_t end = std::min(given->second.find('\n', at), given->second.size());
      const std::string text = given->second.substr(at, std::min(end - at, image::kMaxResidueText));
      if (text.size() >= kTellingLine && text != whole) options.residue.push_back({"secret." + secret.id, text});
      at = end + 1;
    }
  }
  return options;
}

asio::awaitable<Result<BuiltImage>> Engine::finish(StageEnd end) {
  image::MergeOptions options;
  options.layers = end.stack;
  for (const std::string& part : end.parts) {
    if (parts_.layers.find(part).ok() && std::find(options.parts.begin(), options.parts.end(), part) == options.parts.end()) options.parts.push_back(part);
  }
  options.config = end.config;
  options.project = order_.project;
  options.layer = import_options();
  options.layer.architecture = end.architecture;
  model::BuildRecord record{.dockerfile = order_.dockerfile_digest, .steps = {}, .bases = bases_, .sandboxes = sandboxes_, .services = order_.services, .project = order_.project, .by = order_.by};
  for (const StepView& step : steps_) record.steps.push_back(step.text);
  options.build = std::move(record);
  BuiltImage out;
  DSEC_CO_ASSIGN(out.record, co_await net::on_pool(parts_.pool, [importer = &parts_.importer, options, holds = holds_] { return importer->merge(options); }));
  out.cached_steps = cached_;
  for (const auto& [name, value] : order_.args) {
    if (!used_args_.contains(name) && !globals_.contains(name)) out.warnings.push_back("the build argument " + name + " is used by no ARG");
  }
  co_return out;
}

}  // namespace dsec::build
