// Files inside a sandbox. Paths are resolved there, by a process that stands in
// it with the rights of `user`; nothing here opens them.

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/json.hpp>

#include "base/encoding.h"
#include "edge/file_transfer.h"
#include "edge/handlers/handlers.h"
#include "net/query.h"
#include "model/json_text.h"
#include "model/strict_object.h"

namespace dsec::edge::handlers {

namespace json = boost::json;
using net::Query;
using protocol::FileRequest;
using protocol::FileVerb;

namespace {

constexpr std::size_t kControlBody = 64 << 10;
constexpr auto kStepDeadline = std::chrono::seconds(60);  // between two signs of progress
constexpr auto kHeartbeat = std::chrono::seconds(15);

Instant step() { return std::chrono::steady_clock::now() + kStepDeadline; }

std::string_view type_name(protocol::FileType type) {
  switch (type) {
    case protocol::FileType::kFile: return "file";
    case protocol::FileType::kDirectory: return "directory";
    case protocol::FileType::kSymlink: return "symlink";
    case protocol::FileType::kDevice: return "device";
    case protocol::FileType::kFifo: return "fifo";
    case protocol::FileType::kSocket: return "socket";
  }
  return "file";
}

std::string_view kind_name(protocol::WatchKind kind) {
  switch (kind) {
    case protocol::WatchKind::kCreate: return "create";
    case protocol::WatchKind::kWrite: return "write";
    case protocol::WatchKind::kRemove: return "remove";
    case protocol::WatchKind::kRename: return "rename";
    case protocol::WatchKind::kChmod: return "chmod";
    case protocol::WatchKind::kOverflow: return "overflow";
  }
  return "overflow";
}

json::object info_json(const protocol::FileInfo& info) {
  json::object out;
  model::put_bytes(out, "path", info.path);
  const auto slash = info.path.rfind('/');
  model::put_bytes(out, "name", slash == std::string::npos || info.path.size() == 1 ? info.path : info.path.substr(slash + 1));
  out["type"] = type_name(info.type);
  out["size"] = info.size;
  out["mode"] = model::mode_text(info.mode);
  out["uid"] = info.uid;
  out["gid"] = info.gid;
  if (!info.user.empty()) out["user"] = to_utf8(info.user, nullptr);
  if (!info.group.empty()) out["group"] = to_utf8(info.group, nullptr);
  out["mtime_ns"] = info.mtime_ns;
  if (!info.target.empty()) model::put_bytes(out, "target", info.target);
  return out;
}

Result<void> check_path(const std::string& path, const char* field) {
  if (path.empty()) return invalid_argument(std::string(field) + " is missing");
  if (path[0] != '/') return invalid_argument(std::string(field) + " is not absolute");
  if (path.size() > 4096 || path.find('\0') != std::string::npos) return invalid_argument(std::string(field) + " is not a path");
  return {};
}

Result<FileRequest> request_of(const Query& query, FileVerb verb, const LiveSandbox& sandbox) {
  FileRequest request{.verb = verb, .path = query.text("path"), .user = query.text("user")};
  DSEC_TRY(check_path(request.path, "path"));
  if (request.user.empty()) request.user = sandbox.default_user();
  return request;
}

asio::awaitable<Result<void>> stat(net::Exchange& exchange, SandboxRef sandbox) {
  DSEC_CO_ASSIGN(const Query query, Query::parse(exchange.request(), {"path", "user"}));
  DSEC_CO_ASSIGN(FileRequest request, request_of(query, FileVerb::kStat, *sandbox));
  DSEC_CO_ASSIGN(const auto transfer, FileTransfer::begin(sandbox, std::move(request)));
  DSEC_CO_ASSIGN(const protocol::FileReply reply, co_await transfer->next_reply(step()));
  if (reply.entries.empty()) co_return Error(ErrorCode::kInternal, "the agent's answer has no entry");
  co_return co_await exchange.respond(net::json_response(200, model::json_text(info_json(reply.entries[0]))));
}

asio::awaitable<Result<void>> list(net::Exchange& exchange, SandboxRef sandbox) {
  DSEC_CO_ASSIGN(const Query query, Query::parse(exchange.request(), {"path", "user", "recursive", "limit"}));
  DSEC_CO_ASSIGN(FileRequest request, request_of(query, FileVerb::kList, *sandbox));
  DSEC_CO_ASSIGN(request.recursive, query.flag("recursive"));
  DSEC_CO_ASSIGN(const std::uint64_t limit, query.number("limit", 10000));
  if (limit == 0 || limit > 100000) co_return invalid_argument("limit: must be between 1 and 100000");
  request.limit = static_cast<std::uint32_t>(limit);
  DSEC_CO_ASSIGN(const auto transfer, FileTransfer::begin(sandbox, std::move(request)));
  json::array entries;
  bool truncated = false;
  for (bool more = true; more;) {
    DSEC_CO_ASSIGN(const protocol::FileReply reply, co_await transfer->next_reply(step()));
    for (const protocol::FileInfo& info : reply.entries)
      if (entries.size() < limit) entries.push_back(info_json(info));
    truncated = truncated || reply.truncated;
    more = reply.more;
  }
  co_return co_await exchange.respond(
      net::json_response(200, model::json_text(json::object{{"entries", std::move(entries)}, {"truncated", truncated}})));
}

// Streams what the agent sends; nothing is answered before the first bytes or the error are there.
asio::awaitable<Result<void>> send_out(net::Exchange& exchange, FileTransfer& transfer, int status, net::HeaderList headers,
                                       std::optional<std::uint64_t> length) {
  DSEC_CO_ASSIGN(std::string bytes, co_await transfer.next_data(step()));
  if (bytes.empty()) {
    // An empty file, or an error that the last reply tells.
    DSEC_CO_ASSIGN(const protocol::FileReply last, co_await transfer.next_reply(step()));
    if (last.more) co_return Error(ErrorCode::kInternal, "the agent's answer is out of order");
  }
  DSEC_CO_TRY(co_await exchange.begin(status, std::move(headers), length));
  std::uint64_t left = length.value_or(UINT64_MAX);
  while (!bytes.empty() && left > 0) {
    const std::string_view part = std::string_view(bytes).substr(0, static_cast<std::size_t>(std::min<std::uint64_t>(left, bytes.size())));
    DSEC_CO_TRY(co_await exchange.write(part));
    left -= part.size();
    DSEC_CO_ASSIGN(bytes, co_await transfer.next_data(step()));
  }
  // A file that became shorter meanwhile: the client must see that bytes are missing.
  if (length && left > 0) co_return Error(ErrorCode::kConflict, "the file changed while it was read");
  co_return co_await exchange.end();
}

struct Range {
  std::uint64_t offset = 0;
  std::optional<std::uint64_t> last;
  bool suffix = false;
};

// One range of "bytes=…"; anything else is ignored, as RFC 9110 allows.
std::optional<Range> parse_range(const std::string& text) {
  if (!text.starts_with("bytes=") || text.find(',') != std::string::npos) return std::nullopt;
  const auto dash = text.find('-', 6);
  if (dash == std::string::npos) return std::nullopt;
  const auto number = [](std::string_view digits) -> std::optional<std::uint64_t> {
    std::uint64_t out = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), out);
    if (digits.empty() || parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) return std::nullopt;
    return out;
  };
  const auto first = number(std::string_view(text).substr(6, dash - 6));
  const auto last = number(std::string_view(text).substr(dash + 1));
  if (first) {
    if (last && *last < *first) return std::nullopt;
    if (!last && dash + 1 != text.size()) return std::nullopt;
    return Range{.offset = *first, .last = last};
  }
  if (dash == 6 && last) return Range{.offset = *last, .last = {}, .suffix = true};
  return std::nullopt;
}

asio::awaitable<Result<void>> read(net::Exchange& exchange, SandboxRef sandbox) {
  DSEC_CO_ASSIGN(const Query query, Query::parse(exchange.request(), {"path", "user", "offset", "length"}));
  DSEC_CO_ASSIGN(FileRequest request, request_of(query, FileVerb::kRead, *sandbox));
  DSEC_CO_ASSIGN(request.offset, query.number("offset", 0));
  DSEC_CO_ASSIGN(request.length, query.number("length", 0));
  net::HeaderList headers = {{"Content-Type", "application/octet-stream"}, {"X-Content-Type-Options", "nosniff"}, {"Accept-Ranges", "bytes"}};
  if (query.has("length") && request.length == 0) {
    co_return co_await exchange.respond(net::HttpResponse{.status = 200, .headers = std::move(headers), .body = {}});
  }
  int status = 200;
  std::optional<std::uint64_t> length;
  const std::string* range_text = exchange.request().header("range");
  const std::optional<Range> range = range_text != nullptr ? parse_range(*range_text) : std::nullopt;
  if (range && !query.has("offset") && !query.has("length")) {
    FileRequest look = request;
    look.verb = FileVerb::kStat;
    DSEC_CO_ASSIGN(const auto looking, FileTransfer::begin(sandbox, std::move(look)));
    DSEC_CO_ASSIGN(const protocol::FileReply info, co_await looking->next_reply(step()));
    if (!info.entries.empty() && info.entries[0].type == protocol::FileType::kFile) {
      const std::uint64_t size = info.entries[0].size;
      const std::uint64_t from = range->suffix ? size - std::min(size, range->offset) : range->offset;
      if (from >= size)
        co_return co_await exchange.respond(net::error_response(
            invalid_argument("the range begins behind the end of the file"), {.status = 416, .headers = {{"Content-Range", "bytes */" + std::to_string(size)}}}));
      const std::uint64_t last = std::min(range->last.value_or(size - 1), size - 1);
      status = 206;
      request.offset = from;
      request.length = last - from + 1;
      length = request.length;
      headers.emplace_back("Content-Range", "bytes " + std::to_string(from) + "-" + std::to_string(last) + "/" + std::to_string(size));
    }
  }
  DSEC_CO_ASSIGN(const auto transfer, FileTransfer::begin(sandbox, std::move(request)));
  co_return co_await send_out(exchange, *transfer, status, std::move(headers), length);
}

// The body of the request, as it comes, under the agent's window.
asio::awaitable<Result<std::uint64_t>> take_in(net::Exchange& exchange, FileTransfer& transfer) {
  std::vector<char> buffer(protocol::kDataChunk);
  std::uint64_t total = 0;
  while (true) {
    DSEC_CO_ASSIGN(const std::size_t n, co_await exchange.read_some(buffer));
    if (n == 0) break;
    DSEC_CO_TRY(co_await transfer.send_data({buffer.data(), n}, false, step()));
    total += n;
  }
  DSEC_CO_TRY(co_await transfer.send_data({}, true, step()));
  DSEC_CO_TRY(co_await transfer.next_reply(std::chrono::steady_clock::now() + std::chrono::minutes(10)));
  co_return total;
}

asio::awaitable<Result<void>> write(net::Exchange& exchange, SandboxRef sandbox) {
  DSEC_CO_ASSIGN(const Query query, Query::parse(exchange.request(), {"path", "user", "mode", "parents"}));
  DSEC_CO_ASSIGN(FileRequest request, request_of(query, FileVerb::kWrite, *sandbox));
  DSEC_CO_ASSIGN(const std::uint64_t mode, query.number("mode", 0, 8));
  if (mode > 07777) co_return invalid_argument("mode: more than permission bits");
  request.mode = static_cast<std::uint32_t>(mode);
  DSEC_CO_ASSIGN(request.parents, query.flag("parents"));
  const std::string path = request.path;
  DSEC_CO_ASSIGN(const auto transfer, FileTransfer::begin(sandbox, std::move(request)));
  DSEC_CO_ASSIGN(const std::uint64_t bytes, co_await take_in(exchange, *transfer));
  json::object out;
  model::put_bytes(out, "path", path);
  out["size"] = bytes;
  co_return co_await exchange.respond(net::json_response(200, model::json_text(out)));
}

asio::awaitable<Result<void>> remove(net::Exchange& exchange, SandboxRef sandbox) {
  DSEC_CO_ASSIGN(const Query query, Query::parse(exchange.request(), {"path", "user", "recursive"}));
  DSEC_CO_ASSIGN(FileRequest request, request_of(query, FileVerb::kRemove, *sandbox));
  DSEC_CO_ASSIGN(request.recursive, query.flag("recursive"));
  DSEC_CO_ASSIGN(const auto transfer, FileTransfer::begin(sandbox, std::move(request)));
  DSEC_CO_TRY(co_await transfer->next_reply(std::chrono::steady_clock::now() + std::chrono::minutes(10)));
  co_return co_await exchange.respond(net::HttpResponse{.status = 204, .headers = {}, .body = {}});
}

asio::awaitable<Result<void>> change(net::Exchange& exchange, SandboxRef sandbox, FileVerb verb) {
  DSEC_CO_ASSIGN(const std::string body, co_await exchange.read_body(kControlBody));
  DSEC_CO_ASSIGN(const json::value value, model::parse_json(body));
  FileRequest request{.verb = verb};
  model::StrictObject fields(value, "");
  fields.read("path", request.path);
  fields.read("user", request.user);
  fields.read("parents", request.parents);
  std::string mode;
  if (verb == FileVerb::kMove) fields.read("target", request.target);
  else fields.read("mode", mode);
  DSEC_CO_TRY(fields.finish());
  DSEC_CO_TRY(check_path(request.path, "path"));
  if (verb == FileVerb::kMove) DSEC_CO_TRY(check_path(request.target, "target"));
  if (!mode.empty()) {
    const auto parsed = std::from_chars(mode.data(), mode.data() + mode.size(), request.mode, 8);
    if (parsed.ec != std::errc() || parsed.ptr != mode.data() + mode.size() || request.mode > 07777)
      co_return invalid_argument("mode: not octal permission bits");
  }
  if (request.user.empty()) request.user = sandbox->default_user();
  json::object out;
  model::put_bytes(out, "path", verb == FileVerb::kMove ? request.target : request.path);
  DSEC_CO_ASSIGN(const auto transfer, FileTransfer::begin(sandbox, std::move(request)));
  DSEC_CO_TRY(co_await transfer->next_reply(step()));
  co_return co_await exchange.respond(net::json_response(200, model::json_text(out)));
}

// One JSON object a line, as it happens; an empty line now and then, so that both sides notice a dead connection.
asio::awaitable<Result<void>> watch(net::Exchange& exchange, SandboxRef sandbox) {
  using namespace asio::experimental::awaitable_operators;
  DSEC_CO_ASSIGN(const Query query, Query::parse(exchange.request(), {"path", "user", "recursive"}));
  DSEC_CO_ASSIGN(FileRequest request, request_of(query, FileVerb::kWatch, *sandbox));
  DSEC_CO_ASSIGN(request.recursive, query.flag("recursive"));
  DSEC_CO_ASSIGN(const auto transfer, FileTransfer::begin(sandbox, std::move(request)));
  bool begun = false;
  while (true) {
    const auto first = co_await (transfer->next_reply(std::chrono::steady_clock::now() + kHeartbeat) || exchange.client_gone());
    if (first.index() == 1) co_return Error(ErrorCode::kCancelled, "the client has gone away");
    const Result<protocol::FileReply>& reply = std::get<0>(first);
    std::string lines;
    bool last = false;
    if (reply.ok()) {
      for (const protocol::WatchEvent& event : reply->events) {
        json::object line{{"kind", kind_name(event.kind)}};
        model::put_bytes(line, "path", event.path);
        lines += model::json_text(line) + "\n";
      }
      last = !reply->more;
    } else if (reply.error().code() != ErrorCode::kDeadlineExceeded || transfer->failed()) {
      co_return Error(reply.error());
    } else {
      lines = "\n";
    }
    // The watch stands once the agent has answered for the first time.
    if (!begun) DSEC_CO_TRY(co_await exchange.begin(200, {{"Content-Type", "application/x-ndjson"}, {"Cache-Control", "no-store"}}));
    begun = true;
    if (!lines.empty()) DSEC_CO_TRY(co_await exchange.write(lines));
    if (last) co_return co_await exchange.end();
  }
}

asio::awaitable<Result<void>> archive(net::Exchange& exchange, SandboxRef sandbox) {
  const bool in = exchange.request().method == "PUT";
  DSEC_CO_ASSIGN(const Query query, Query::parse(exchange.request(), {"path", "user"}));
  DSEC_CO_ASSIGN(FileRequest request, request_of(query, in ? FileVerb::kTarIn : FileVerb::kTarOut, *sandbox));
  if (in) {
    // Unpacked into a directory that is made where it is missing.
    FileRequest place{.verb = FileVerb::kMakeDirectory, .path = request.path, .user = request.user, .parents = true};
    DSEC_CO_ASSIGN(const auto making, FileTransfer::begin(sandbox, std::move(place)));
    DSEC_CO_TRY(co_await making->next_reply(step()));
  }
  DSEC_CO_ASSIGN(const auto transfer, FileTransfer::begin(sandbox, std::move(request)));
  if (!in) co_return co_await send_out(exchange, *transfer, 200, {{"Content-Type", "application/x-tar"}}, {});
  DSEC_CO_ASSIGN(const std::uint64_t bytes, co_await take_in(exchange, *transfer));
  co_return co_await exchange.respond(net::json_response(200, model::json_text(json::object{{"bytes", bytes}})));
}

}  // namespace

asio::awaitable<Result<void>> files(net::Exchange& exchange, SandboxRef sandbox, Segments rest) {
  if (sandbox->over()) co_return Error(ErrorCode::kConflict, "the sandbox has ended");
  const std::string method = exchange.request().method;
  const std::string part = rest.size() == 1 ? "" : rest[1];
  if (rest.size() <= 2) {
    if (part.empty() && method == "GET") co_return co_await read(exchange, std::move(sandbox));
    if (part.empty() && method == "PUT") co_return co_await write(exchange, std::move(sandbox));
    if (part.empty() && method == "DELETE") co_return co_await remove(exchange, std::move(sandbox));
    if (part == "stat" && method == "GET") co_return co_await stat(exchange, std::move(sandbox));
    if (part == "list" && method == "GET") co_return co_await list(exchange, std::move(sandbox));
    if (part == "mkdir" && method == "POST") co_return co_await change(exchange, std::move(sandbox), FileVerb::kMakeDirectory);
    if (part == "move" && method == "POST") co_return co_await change(exchange, std::move(sandbox), FileVerb::kMove);
    if (part == "watch" && method == "GET") co_return co_await watch(exchange, std::move(sandbox));
    if (part == "archive" && (method == "GET" || method == "PUT")) co_return co_await archive(exchange, std::move(sandbox));
  }
  co_return Error(ErrorCode::kNotFound, "there is nothing at this path");
}

}  // namespace dsec::edge::handlers
