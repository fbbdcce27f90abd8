// What is in a layer, and what is done with it: ls, cat, diff, verify, sign, sync, fetch, optimize.
#include <unistd.h>

#include "base/encoding.h"
#include "cli/file_columns.h"
#include "cli/operation.h"
#include "cli/units_text.h"
#include "cli/verbs.h"
#include "model/builder_key.h"
#include "sys/file.h"

namespace dsec::cli {
namespace {

constexpr std::size_t kKeyLimit = 16 << 10;
constexpr std::size_t kTraceLimit = 1 << 20 | 64 << 10;

std::string layer_target(const std::string& ref, const std::string& tail) { return "/v1/layers/" + percent_encode(ref) + tail; }

std::string without_end_of_line(std::string text) {
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  return text;
}

// "mode owner" of "! /etc/passwd  mode, owner".
std::string what_text(const json::object& line) {
  std::string out;
  const json::value* what = line.if_contains("what");
  if (what == nullptr || !what->is_array()) return out;
  for (const json::value& item : what->get_array())
    if (item.is_string()) out += (out.empty() ? "  " : ", ") + std::string(item.get_string());
  return out;
}

// Takes lines of JSON in parts of any size.
class DiffLines {
 public:
  explicit DiffLines(bool json_output) : json_(json_output) {}

  Result<void> take(std::string_view part) {
    rest_ += part;
    std::string out;
    std::size_t begin = 0;
    for (std::size_t end = rest_.find('\n'); end != std::string::npos; end = rest_.find('\n', begin)) {
      DSEC_ASSIGN(const std::string line, one(std::string_view(rest_).substr(begin, end - begin)));
      out += line;
      begin = end + 1;
    }
    rest_.erase(0, begin);
    print(out);
    return {};
  }
  bool any() const { return any_; }

 private:
  Result<std::string> one(std::string_view text) {
    any_ = true;
    if (json_) return std::string(text) + "\n";
    boost::system::error_code failed;
    const json::value value = json::parse(text, failed);
    if (failed || !value.is_object()) return Error(ErrorCode::kInternal, "the server's answer is no line of JSON");
    const json::object& line = value.get_object();
    const std::string change = text_at(line, "change");
    const char* mark = change == "added" ? "+ " : change == "removed" ? "- " : "! ";
    return mark + printable(text_at(line, "path")) + what_text(line) + "\n";
  }

  const bool json_;
  bool any_ = false;
  std::string rest_;
};

Result<json::object> proof_of(const LayerVerifyOptions& options) {
  if (options.key.empty() != options.signature.empty()) return invalid_argument("--key and --signature go together");
  if (options.key.empty()) return json::object();
  DSEC_ASSIGN(const std::string key, sys::read_file(options.key, kKeyLimit));
  DSEC_ASSIGN(const std::string signature, sys::read_file(options.signature, kKeyLimit));
  return json::object{{"key", key}, {"signature", without_end_of_line(signature)}};
}

Result<json::value> verify_one(Context& context, const std::string& ref, const json::value& proof) {
  return run_operation(context, layer_target(ref, "/verify?background=true"), proof, "verification");
}

Result<std::vector<std::string>> digests_of_all(Context& context) {
  DSEC_ASSIGN(const json::array items, context.pages("/v1/layers"));
  std::vector<std::string> digests;
  for (const json::value& item : items)
    if (item.is_object()) digests.push_back(text_at(item.get_object(), "digest"));
  return digests;
}

Result<void> choose(Context& context, bool all, std::vector<std::string>& refs) {
  if (!all) return {};
  DSEC_ASSIGN(refs, digests_of_all(context));
  return {};
}

}  // namespace

int layer_files_verb(Context& context, const std::string& ref, const std::string& path, bool recursive, const ListingOptions& options) {
  auto items = context.pages(layer_target(ref, "/files?path=" + percent_encode(path) + (recursive ? "&recursive=true" : "")));
  if (!items.ok()) return fail(items.error());
  const std::string field = recursive ? "path" : "name";
  std::vector<Column> columns = file_columns(field);
  columns.insert(columns.end() - 1, Column{"LINKS", [](const json::object& o) { return text_at(o, "links"); }, true});
  const auto text = listing(*items, columns, [&field](const json::object& o) { return text_at(o, field); }, options);
  if (!text.ok()) return fail(text.error(), kUsage);
  print(*text);
  return kOk;
}

int layer_cat_verb(Context& context, const std::string& ref, const std::string& path) {
  HttpCall call;
  call.target = layer_target(ref, "/content?path=" + percent_encode(path));
  const auto done = context.raw(call, [](std::string_view part) { return sys::write_all(STDOUT_FILENO, part); });
  return done.ok() ? kOk : fail(done.error());
}

int layer_diff_verb(Context& context, const std::string& before, const std::string& after, bool json_output) {
  HttpCall call;
  call.target = layer_target(after, "/diff?against=" + percent_encode(before));
  call.timeout = std::chrono::minutes(10);
  DiffLines lines(json_output);
  const auto done = context.raw(call, [&lines](std::string_view part) { return lines.take(part); });
  if (!done.ok()) return fail(done.error(), kUsage);
  return lines.any() ? kFailed : kOk;
}

int layer_verify_verb(Context& context, std::vector<std::string> refs, const LayerVerifyOptions& options) {
  const auto proof = proof_of(options);
  if (!proof.ok()) return fail(proof.error(), kUsage);
  if (options.all == !refs.empty()) return fail(invalid_argument("name the layers, or give --all"), kUsage);
  if (const Result<void> chosen = choose(context, options.all, refs); !chosen.ok()) return fail(chosen.error());
  if (!proof->empty() && refs.size() != 1) return fail(invalid_argument("a signature is of one layer"), kUsage);
  int code = kOk;
  for (const std::string& ref : refs) {
    auto done = verify_one(context, ref, *proof);
    if (!done.ok()) code = fail(std::move(done).within(ref).error());
    else if (options.json) print(json::serialize(*done) + "\n");
    else print(ref + "  intact" + (proof->empty() ? "" : ", signed by that key") + "\n");
  }
  return code;
}

int layer_sync_verb(Context& context, std::vector<std::string> refs, bool all, const std::string& to) {
  if (all == !refs.empty()) return fail(invalid_argument("name the layers, or give --all"), kUsage);
  if (const Result<void> chosen = choose(context, all, refs); !chosen.ok()) return fail(chosen.error());
  int code = kOk;
  for (const std::string& ref : refs) {
    auto done = run_operation(context, layer_target(ref, "/sync" + (to.empty() ? "" : "?to=" + percent_encode(to))), json::object(), "sync");
    if (!done.ok()) code = fail(std::move(done).within(ref).error());
    else print(ref + "  in the store\n");
  }
  return code;
}

int layer_fetch_verb(Context& context, const std::string& digest, const std::string& name) {
  const auto done = run_operation(context, layer_target(digest, "/fetch?name=" + percent_encode(name)), json::object(), "fetch");
  if (!done.ok()) return fail(done.error());
  print(name + "  " + digest + "\n");
  return kOk;
}

int layer_optimize_verb(Context& context, const std::string& ref, const LayerOptimizeOptions& options) {
  json::object body;
  if (!options.trace.empty()) {
    const auto trace = sys::read_file(options.trace, kTraceLimit);
    if (!trace.ok()) return fail(trace.error(), kUsage);
    body["trace"] = to_base64(*trace);
  }
  std::string target = layer_target(ref, "/optimize");
  if (!options.kind.empty()) target += "?kind=" + percent_encode(options.kind);
  if (!options.name.empty()) target += (options.kind.empty() ? "?name=" : "&name=") + percent_encode(options.name);
  const auto done = run_operation(context, target, body, "rewrite");
  if (!done.ok()) return fail(done.error());
  const json::object& layer = done->get_object();
  if (options.json) {
    print(pretty(*done) + "\n");
    return kOk;
  }
  const auto size = [&](const char* field) { return bytes_text(static_cast<std::uint64_t>(number_at(layer, field))); };
  print(text_at(layer, "ref") + "  " + text_at(layer, "digest") + "  " + size("hot_bytes") + " first, for " + size("touched_bytes") + " that were read, of " + size("data_bytes") + "\n");
  return kOk;
}

int layer_sign_verb(Context& context, const std::string& ref, const std::string& key) {
  const auto pem = sys::read_file(key, kKeyLimit);
  if (!pem.ok()) return fail(pem.error());
  auto layer = context.get(layer_target(ref, ""));
  if (!layer.ok()) return fail(layer.error());
  const auto signature = model::sign_layer(*pem, layer->is_object() ? text_at(layer->get_object(), "digest") : "");
  if (!signature.ok()) return fail(signature.error());
  print(*signature + "\n");
  return kOk;
}

}  // namespace dsec::cli
