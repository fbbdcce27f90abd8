// Images and layers: import, list, look at, remove.
#include <chrono>

#include "cli/import_source.h"
#include "cli/operation.h"
#include "cli/progress.h"
#include "cli/units_text.h"
#include "cli/verbs.h"
#include "sys/file.h"

namespace dsec::cli {
namespace {

constexpr std::size_t kMaxAuthfile = 64 << 10;

const json::object& layer_of(const json::object& o) {
  const json::value* layer = o.if_contains("layer");
  return layer && layer->is_object() ? layer->get_object() : o;
}

std::string short_digest(const std::string& digest) { return digest.starts_with("sha256:") ? digest.substr(7, 12) : digest.substr(0, 12); }

std::string name_of(const json::object& o) {
  for (const char* key : {"name", "ref", "digest"})
    if (std::string text = text_at(o, key); !text.empty()) {
      const std::string tag = text_at(o, "tag");
      return tag.empty() || key[0] != 'n' || text.find(':') != std::string::npos ? text : text + ":" + tag;
    }
  return text_at(layer_of(o), "digest");
}

std::string names_of(const json::object& o) {
  const json::value* refs = value_at(o, "refs");
  if (!refs || !refs->is_array() || refs->get_array().empty()) return name_of(o);
  std::string out;
  for (const json::value& ref : refs->get_array())
    if (ref.is_string()) out += (out.empty() ? "" : ", ") + std::string(ref.get_string());
  return out;
}

std::string reuse_text(const json::object& record) {
  const auto reused = static_cast<std::uint64_t>(number_at(record, "reused_layers"));
  if (reused == 0) return "";
  return "; " + std::to_string(reused) + " of " + text_at(record, "image_layers") + " layers were known (" + bytes_text(static_cast<std::uint64_t>(number_at(record, "reused_bytes"))) + ")";
}

}  // namespace

int import_verb(Context& context, const ImportVerbOptions& options) {
  auto source = parse_source(options.source);
  if (!source.ok()) return fail(source.error(), kUsage);
  if (!options.authfile.empty() && !options.source.starts_with("docker://")) return fail(invalid_argument("--authfile goes with docker://"), kUsage);
  std::optional<Owner> owner;
  if (!options.owner.empty()) {
    auto parsed = parse_owner(options.owner);
    if (!parsed.ok()) return fail(parsed.error(), kUsage);
    owner = *parsed;
  }
  HttpCall call;
  call.method = "POST";
  call.target = "/v1/" + options.collection + "?name=" + percent_encode(options.name);
  if (!options.kind.empty()) call.target += "&kind=" + percent_encode(options.kind);
  if (!options.at.empty()) call.target += "&at=" + percent_encode(options.at);
  if (!options.profile.empty()) call.target += "&profile=" + percent_encode(options.profile);
  if (!options.architecture.empty()) call.target += "&architecture=" + percent_encode(options.architecture);
  // A server-side build takes as long as its packages take to come.
  call.timeout = std::chrono::hours(2);
  std::optional<Progress> progress;
  if (!options.quiet) progress.emplace(options.name);
  std::unique_ptr<SourceStream> stream;
  if (source->kind == SourceKind::kServerSide) {
    call.target += "&source=" + percent_encode(source->path);
    if (!options.authfile.empty()) {
      auto secret = sys::read_file(options.authfile, kMaxAuthfile);
      if (!secret.ok()) return fail(std::move(secret).within("--authfile").error(), kUsage);
      call.body = std::move(secret).value();
      call.headers = {{"Content-Type", "application/json"}};
    }
    if (progress) progress->update("the server gets " + source->path, 0, 0);
  } else {
    if (source->kind == SourceKind::kOci) call.target += "&format=oci";
    if (source->kind == SourceKind::kDockerArchive) call.target += "&format=docker";
    auto opened = SourceStream::open(*source, owner);
    if (!opened.ok()) return fail(opened.error());
    stream = std::move(opened).value();
    call.target += "&label=" + percent_encode(options.source);
    call.headers = {{"Content-Type", "application/x-tar"}};
    call.body_source = [&]() -> Result<std::string> {
      DSEC_ASSIGN(std::string part, stream->next());
      if (progress) {
        if (part.empty()) progress->update("building", stream->sent_bytes(), 0);
        else progress->update("sending", stream->sent_bytes(), stream->total_bytes());
      }
      return part;
    };
  }
  auto answer = context.raw(call);
  if (!answer.ok()) {
    if (progress) progress->clear();
    return fail(std::move(answer).within("import " + options.name).error());
  }
  boost::system::error_code failure;
  json::value layer = json::parse(answer->body, failure);
  if (failure) return fail(Error(ErrorCode::kInternal, "the server's answer to the import is no JSON"));
  if (layer.is_object()) {
    std::string operation = text_at(layer.get_object(), "operation_id");
    if (operation.empty()) operation = text_at(layer.get_object(), "operation.id");
    if (operation.empty() && answer->status == 202) operation = text_at(layer.get_object(), "id");
    if (!operation.empty()) {
      auto result = follow_operation(context, operation, "import", progress ? &*progress : nullptr);
      if (!result.ok()) {
        if (progress) progress->clear();
        return fail(std::move(result).within("import " + options.name).error());
      }
      layer = std::move(result).value();
    }
  }
  if (progress) progress->clear();
  if (options.json || !layer.is_object()) {
    print(pretty(layer) + "\n");
    return kOk;
  }
  const json::object& record = layer_of(layer.get_object());
  print(options.quiet ? text_at(record, "digest") + "\n"
                      : options.name + "  " + text_at(record, "digest") + "  " + text_at(record, "entries") + " entries, " +
                            bytes_text(static_cast<std::uint64_t>(number_at(record, "content_bytes"))) + " of files in " +
                            bytes_text(static_cast<std::uint64_t>(number_at(record, "size_bytes"))) + reuse_text(record) + "\n");
  return kOk;
}

int catalogue_ls_verb(Context& context, const std::string& collection, const ListingOptions& options) {
  auto items = context.pages("/v1/" + collection);
  if (!items.ok()) return fail(items.error());
  const std::vector<Column> columns = {
      {"NAME", names_of},
      {"KIND", [](const json::object& o) { return text_at(layer_of(o), "kind"); }},
      {"DIGEST", [&options](const json::object& o) {
         const std::string digest = text_at(layer_of(o), "digest");
         return options.wide ? digest : short_digest(digest);
       }},
      {"SIZE", [](const json::object& o) { return bytes_text(static_cast<std::uint64_t>(number_at(layer_of(o), "size_bytes"))); }},
      {"FILES", [](const json::object& o) { return text_at(layer_of(o), "entries"); }},
      {"CREATED", [](const json::object& o) { return time_text(time_at(layer_of(o), value_at(layer_of(o), "created_at") ? "created_at" : "created_at_ms")); }, true},
      {"SOURCE", [](const json::object& o) { return text_at(layer_of(o), "source"); }, true},
  };
  const auto text = listing(*items, columns, name_of, options);
  if (!text.ok()) return fail(text.error(), kUsage);
  print(*text);
  return kOk;
}

int catalogue_inspect_verb(Context& context, const std::string& collection, const std::string& ref) {
  auto answer = context.get("/v1/" + collection + "/" + percent_encode(ref));
  if (!answer.ok()) return fail(answer.error());
  print(pretty(*answer) + "\n");
  return kOk;
}

int catalogue_rm_verb(Context& context, const std::string& collection, const std::vector<std::string>& refs) {
  int code = kOk;
  for (const std::string& ref : refs) {
    auto done = context.call("DELETE", "/v1/" + collection + "/" + percent_encode(ref));
    if (done.ok()) print(ref + "\n");
    else code = fail(std::move(done).within(ref).error());
  }
  return code;
}

}  // namespace dsec::cli
