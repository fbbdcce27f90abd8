// What is in a layer, read by our own reader on worker threads: the event loop
// sees no byte of an image before it has been taken apart.
#include <boost/json/array.hpp>

#include "apiserver/handlers/handlers.h"
#include "apiserver/layer_entry.h"
#include "base/encoding.h"
#include "erofs/tree_diff.h"
#include "erofs/tree_walk.h"
#include "image/layer_view.h"
#include "model/json_text.h"
#include "net/blocking.h"
#include "net/query.h"

namespace dsec::apiserver {
namespace json = boost::json;
namespace {

constexpr std::uint64_t kMostEntries = 10'000;
constexpr std::size_t kContentPiece = 256 << 10;
// Of a comparison, between two looks at the client.
constexpr std::size_t kDiffEntries = 2000;
constexpr std::uint64_t kDiffBytes = 16 << 20;

Result<std::string> path_of(const net::Query& query) {
  const std::string path = query.has("path") ? query.text("path") : "/";
  if (path.empty() || path[0] != '/' || path.size() > 4096 || path.find('\0') != std::string::npos)
    return invalid_argument("path: an absolute path in the layer");
  return path;
}

struct Listing {
  std::vector<LayerEntry> entries;
  std::string next;  // the last path, where there is more behind it
};

struct ListRequest {
  std::string digest;
  std::string path;
  erofs::Depth depth = erofs::Depth::kChildren;
  std::uint64_t limit = 0;
  std::string after;  // "" = from the start
};

Result<Listing> list_files(const image::LayerStore& layers, const ListRequest& request) {
  DSEC_ASSIGN(erofs::Reader reader, image::open_reader(layers, request.digest));
  DSEC_ASSIGN(const erofs::StoredInode node, reader.lookup(request.path));
  Listing out;
  if (!node.is_directory()) {
    DSEC_ASSIGN(LayerEntry entry, describe_entry(reader, request.path, node));
    out.entries.push_back(std::move(entry));
    return out;
  }
  DSEC_ASSIGN(erofs::TreeWalk walk, erofs::TreeWalk::begin(reader, request.path, request.depth));
  if (!request.after.empty()) DSEC_TRY(walk.skip_past(request.after));
  while (true) {
    DSEC_ASSIGN(std::optional<erofs::TreeWalk::Entry> next, walk.next());
    if (!next) return out;
    if (out.entries.size() == request.limit) {
      out.next = out.entries.back().path;
      return out;
    }
    DSEC_ASSIGN(LayerEntry entry, describe_entry(reader, std::move(next->path), next->node));
    out.entries.push_back(std::move(entry));
  }
}

// An open file of a layer; used by one worker thread at a time.
struct OpenFile {
  erofs::Reader reader;
  erofs::StoredInode node;
  std::uint64_t at = 0;
};

Result<std::shared_ptr<OpenFile>> open_file(const image::LayerStore& layers, const std::string& digest, const std::string& path) {
  DSEC_ASSIGN(erofs::Reader reader, image::open_reader(layers, digest));
  DSEC_ASSIGN(const erofs::StoredInode node, reader.lookup(path));
  if (!node.is_file()) return invalid_argument("path: not a regular file (links are not followed): " + path);
  return std::make_shared<OpenFile>(OpenFile{std::move(reader), node});
}

Result<std::string> read_piece(OpenFile& file) {
  std::string bytes(kContentPiece, '\0');
  DSEC_ASSIGN(const std::size_t got, file.reader.read(file.node, file.at, bytes));
  file.at += got;
  bytes.resize(got);
  return bytes;
}

struct OpenDiff {
  std::unique_ptr<erofs::Reader> before;
  std::unique_ptr<erofs::Reader> after;
  std::optional<erofs::TreeDiff> diff;
};

Result<std::shared_ptr<OpenDiff>> open_diff(const image::LayerStore& layers, const std::string& before, const std::string& after) {
  auto out = std::make_shared<OpenDiff>();
  DSEC_ASSIGN(erofs::Reader left, image::open_reader(layers, before));
  DSEC_ASSIGN(erofs::Reader right, image::open_reader(layers, after));
  out->before = std::make_unique<erofs::Reader>(std::move(left));
  out->after = std::make_unique<erofs::Reader>(std::move(right));
  DSEC_ASSIGN(out->diff, erofs::TreeDiff::begin(*out->before, *out->after));
  return out;
}

Result<json::object> side_json(erofs::Reader& reader, const std::string& path, const std::optional<erofs::StoredInode>& node) {
  if (!node) return json::object();
  DSEC_ASSIGN(const LayerEntry entry, describe_entry(reader, path, *node));
  return to_json(entry);
}

// Lines of JSON, one for each difference; "" when this step met none.
Result<std::string> diff_lines(OpenDiff& open) {
  DSEC_ASSIGN(const std::vector<erofs::Difference> found, open.diff->next(kDiffEntries, kDiffBytes));
  std::string lines;
  for (const erofs::Difference& difference : found) {
    json::object line;
    model::put_bytes(line, "path", difference.path);
    line["change"] = !difference.before ? "added" : !difference.after ? "removed" : "changed";
    json::array what;
    for (const std::string_view item : difference.what) what.emplace_back(item);
    if (!what.empty()) line["what"] = std::move(what);
    DSEC_ASSIGN(json::object before, side_json(*open.before, difference.path, difference.before));
    DSEC_ASSIGN(json::object after, side_json(*open.after, difference.path, difference.after));
    if (!before.empty()) line["before"] = std::move(before);
    if (!after.empty()) line["after"] = std::move(after);
    lines += model::json_text(line) + "\n";
  }
  return lines;
}

}  // namespace

asio::awaitable<Result<void>> list_layer_files(ApiServer& server, Call& call) {
  DSEC_CO_ASSIGN(const net::Query query, net::Query::parse(call.request(), {"kind", "path", "recursive", "limit", "cursor"}));
  ListRequest request;
  DSEC_CO_ASSIGN(request.digest, readable_layer(server, call, call.path.at("ref")));
  DSEC_CO_ASSIGN(request.path, path_of(query));
  DSEC_CO_ASSIGN(const bool recursive, query.flag("recursive"));
  request.depth = recursive ? erofs::Depth::kAll : erofs::Depth::kChildren;
  DSEC_CO_ASSIGN(request.limit, query.number("limit", 1000));
  if (request.limit == 0 || request.limit > kMostEntries) co_return invalid_argument("limit: must be between 1 and 10000");
  if (const std::string cursor = query.text("cursor"); !cursor.empty()) {
    Result<std::string> after = from_base64(cursor);
    if (!after.ok()) co_return invalid_argument("cursor: not one of this call's");
    request.after = std::move(after).value();
  }
  DSEC_CO_ASSIGN(const Listing listing, co_await net::on_pool(server.parts.pool, [&layers = server.parts.layers, request] { return list_files(layers, request); }));
  json::array items;
  for (const LayerEntry& entry : listing.entries) items.push_back(to_json(entry));
  co_return co_await respond_json(call.exchange, 200, {{"items", std::move(items)}, {"next_cursor", to_base64(listing.next)}});
}

asio::awaitable<Result<void>> read_layer_file(ApiServer& server, Call& call) {
  DSEC_CO_ASSIGN(const net::Query query, net::Query::parse(call.request(), {"kind", "path"}));
  DSEC_CO_ASSIGN(const std::string digest, readable_layer(server, call, call.path.at("ref")));
  DSEC_CO_ASSIGN(const std::string path, path_of(query));
  const image::LayerStore& layers = server.parts.layers;
  DSEC_CO_ASSIGN(const std::shared_ptr<OpenFile> file,
                 co_await net::on_pool(server.parts.pool, [&layers, digest, path] { return open_file(layers, digest, path); }));
  const auto next = [&] { return net::on_pool(server.parts.pool, [file] { return read_piece(*file); }); };
  // The first piece before the answer's head: most faults still have a status of their own then.
  DSEC_CO_ASSIGN(std::string bytes, co_await next());
  DSEC_CO_TRY(co_await call.exchange.begin(200, {{"Content-Type", "application/octet-stream"}, {"X-Content-Type-Options", "nosniff"}}, file->node.size));
  while (!bytes.empty()) {
    DSEC_CO_TRY(co_await call.exchange.write(bytes));
    DSEC_CO_ASSIGN(bytes, co_await next());
  }
  co_return co_await call.exchange.end();
}

asio::awaitable<Result<void>> diff_layers(ApiServer& server, Call& call) {
  DSEC_CO_ASSIGN(const net::Query query, net::Query::parse(call.request(), {"kind", "against"}));
  if (!query.has("against")) co_return invalid_argument("against: the layer to compare with is missing");
  DSEC_CO_ASSIGN(const std::string after, readable_layer(server, call, call.path.at("ref")));
  DSEC_CO_ASSIGN(const std::string before, readable_layer(server, call, query.text("against")));
  const image::LayerStore& layers = server.parts.layers;
  DSEC_CO_ASSIGN(const std::shared_ptr<OpenDiff> open,
                 co_await net::on_pool(server.parts.pool, [&layers, before, after] { return open_diff(layers, before, after); }));
  const auto next = [&] { return net::on_pool(server.parts.pool, [open] { return diff_lines(*open); }); };
  DSEC_CO_ASSIGN(std::string lines, co_await next());
  DSEC_CO_TRY(co_await call.exchange.begin(200, {{"Content-Type", "application/x-ndjson"}, {"X-Content-Type-Options", "nosniff"}}));
  while (true) {
    if (!lines.empty()) DSEC_CO_TRY(co_await call.exchange.write(lines));
    if (open->diff->done()) co_return co_await call.exchange.end();
    DSEC_CO_ASSIGN(lines, co_await next());
  }
}

}  // namespace dsec::apiserver
