// An edge on the fake backend, its loop on a thread, and real HTTP in front.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/json.hpp>
#include <filesystem>
#include <future>
#include <thread>

#include "backend/fake/plain_backend.h"
#include "edge/edge.h"
#include "edge/egress_resolver.h"
#include "model/json.h"
#include "net/http_server.h"
#include "store/sqlite_store.h"

namespace dsec::edge {

namespace json = boost::json;

inline std::string agent_program() { return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "dsec-agent"; }

struct HttpAnswer {
  int status = 0;
  std::string head;
  std::string body;
  json::value json() const { return json::parse(body); }
  std::string header(const std::string& name) const {
    const auto at = head.find("\r\n" + name + ": ");
    if (at == std::string::npos) return {};
    const auto from = at + name.size() + 4;
    return head.substr(from, head.find("\r\n", from) - from);
  }
};

// One edge process, as far as one process can show it: stop() and a new one on
// the same directory are a restart.
class RunningEdge {
 public:
  explicit RunningEdge(const std::string& directory, Limits limits = {})
      : history_(store::open_sqlite_store(directory + "/dsec.db").value()),
        uppers_(nullptr, "tests write nowhere"),
        backend_(backend::fake::PlainBackend::create({.agent = agent_program(), .directory = directory + "/a"}).value()) {
    Edge::Parts parts{.io = io_, .clock = clock_, .random = random_, .backends = {{"fake", backend_.get()}}, .layers = nullptr, .uppers = uppers_, .resolver = resolver_, .history = history_.get()};
    Result<std::unique_ptr<Edge>> opened = Edge::open(std::move(parts), {.data_directory = directory, .limits = limits});
    if (!opened.ok()) {
      ADD_FAILURE() << opened.error().message();
      std::abort();
    }
    edge_ = std::move(opened).value();
    auto server = net::HttpServer::listen(io_, {}, [this](net::Exchange& exchange) { return handle(exchange); });
    if (!server.ok()) std::abort();
    server_ = std::move(server).value();
    boost::asio::co_spawn(io_, [this] { return edge_->recover(); }, boost::asio::detached);
    work_.emplace(io_.get_executor());
    thread_ = std::thread([this] { io_.run(); });
  }
  ~RunningEdge() { stop(Edge::Sandboxes::kStop); }

  // kKeep leaves the sandboxes to the next edge.
  void stop(Edge::Sandboxes sandboxes) {
    if (!thread_.joinable()) return;
    boost::asio::co_spawn(io_, [this, sandboxes] { return edge_->stop(sandboxes); }, boost::asio::use_future).wait();
    io_.stop();
    thread_.join();
    server_.reset();
    edge_.reset();
  }

  HttpAnswer call(const std::string& method, const std::string& path, const std::string& body = "", const std::string& headers = "") {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      ::close(fd);
      return {};
    }
    std::string out = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + headers;
    if (!body.empty() || method != "GET") out += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    out += "\r\n" + body;
    for (std::size_t sent = 0; sent < out.size();) {
      const ssize_t n = ::send(fd, out.data() + sent, out.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += static_cast<std::size_t>(n);
    }
    std::string in;
    char buffer[65536];
    for (ssize_t n; (n = ::recv(fd, buffer, sizeof buffer, 0)) > 0;) in.append(buffer, static_cast<std::size_t>(n));
    ::close(fd);
    return parse(in);
  }

  std::string create(const std::string& extra = "") {
    const HttpAnswer answer = call("POST", "/create", "{\"backend\":\"fake\",\"image\":\"test:1\"" + extra + "}");
    EXPECT_EQ(answer.status, 201) << answer.body;
    return answer.status == 201 ? std::string(answer.json().at("id").as_string()) : std::string();
  }
  json::object exec(const std::string& id, const std::string& body) {
    const HttpAnswer answer = call("POST", "/v1/sandboxes/" + id + "/exec", body);
    EXPECT_TRUE(answer.status == 200 || answer.status == 202) << answer.status << " " << answer.body;
    return answer.json().is_object() ? answer.json().as_object() : json::object();
  }
  std::uint16_t port() const { return server_->port(); }

 private:
  static HttpAnswer parse(const std::string& in) {
    HttpAnswer answer;
    const auto end = in.find("\r\n\r\n");
    if (end == std::string::npos || in.size() < 12) return answer;
    answer.status = std::atoi(in.c_str() + 9);
    answer.head = in.substr(0, end + 2);
    std::string body = in.substr(end + 4);
    if (answer.head.find("chunked") == std::string::npos) {
      answer.body = std::move(body);
      return answer;
    }
    for (std::size_t at = 0; at < body.size();) {
      const std::size_t size = std::strtoul(body.c_str() + at, nullptr, 16);
      at = body.find("\r\n", at) + 2;
      if (size == 0) break;
      answer.body += body.substr(at, size);
      at += size + 2;
    }
    return answer;
  }

  boost::asio::awaitable<void> handle(net::Exchange& exchange) {
    const net::HttpRequest& request = exchange.request();
    if (request.path == "/create") {
      const Result<std::string> body = co_await exchange.read_body(1 << 20);
      const Result<model::SandboxSpec> spec = model::spec_from_json(json::parse(*body));
      Result<model::Sandbox> made = spec.ok() ? Result<model::Sandbox>(Error(ErrorCode::kInternal, "")) : Result<model::Sandbox>(spec.error());
      const std::string* key = request.header("idempotency-key");
      if (spec.ok()) made = co_await edge_->create({.principal = {}, .spec = *spec, .layers = {}, .idempotency_key = key ? *key : ""});
      net::HttpResponse response = made.ok() ? net::json_response(made->state == model::SandboxState::kRunning ? 201 : 202, json::serialize(model::to_json(*made)))
                                             : net::error_response(made.error());
      (void)co_await exchange.respond(std::move(response));
      co_return;
    }
    if (request.path == "/node") {
      (void)co_await exchange.respond(net::json_response(200, edge_->node_json()));
      co_return;
    }
    if (request.path == "/v1/sandboxes") co_return co_await list(exchange);
    if (request.path.starts_with("/bulk/")) co_return co_await bulk(exchange);
    std::vector<std::string> rest(request.segments.begin() + 3, request.segments.end());
    co_await edge_->serve(exchange, {}, request.segments[2], std::move(rest));
  }

  // POST /bulk/pause?selector=…&within_ms=…
  boost::asio::awaitable<void> bulk(net::Exchange& exchange) {
    const net::HttpRequest& request = exchange.request();
    BulkCommand command;
    command.verb = request.path == "/bulk/pause" ? BulkCommand::Verb::kPause : request.path == "/bulk/resume" ? BulkCommand::Verb::kResume : BulkCommand::Verb::kStop;
    if (const std::string* selector = request.parameter("selector")) command.selector = *selector;
    if (const std::string* within = request.parameter("within_ms")) command.within = std::chrono::milliseconds(std::stoul(*within));
    const Result<std::vector<BulkResult>> results = co_await edge_->bulk(std::move(command));
    json::array out;
    if (results.ok())
      for (const BulkResult& result : *results)
        out.push_back(json::object{{"id", result.id}, {"state", std::string(model::to_string(result.state))}, {"error", result.error ? result.error->message() : ""}});
    (void)co_await exchange.respond(results.ok() ? net::json_response(200, json::serialize(out)) : net::error_response(results.error()));
  }

  boost::asio::awaitable<void> list(net::Exchange& exchange) {
    const auto parameter = [&](const char* name) {
      const std::string* value = exchange.request().parameter(name);
      return value ? *value : std::string();
    };
    const std::string limit = parameter("limit");
    const Result<SandboxPage> page = co_await edge_->list(
        {}, {.selector = parameter("selector"), .state = parameter("state"), .limit = limit.empty() ? 100 : std::stoul(limit), .cursor = parameter("cursor")});
    if (!page.ok()) {
      (void)co_await exchange.respond(net::error_response(page.error()));
      co_return;
    }
    json::array items;
    for (const model::Sandbox& sandbox : page->items) items.push_back(model::to_json(sandbox));
    (void)co_await exchange.respond(net::json_response(200, json::serialize(json::object{{"items", items}, {"next_cursor", page->next_cursor}})));
  }

  boost::asio::io_context io_{1};
  SystemClock clock_;
  SystemRandom random_;
  std::unique_ptr<store::Store> history_;
  UpperPools uppers_;
  SystemResolver resolver_;
  std::unique_ptr<backend::fake::PlainBackend> backend_;
  std::unique_ptr<Edge> edge_;
  std::unique_ptr<net::HttpServer> server_;
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> work_;
  std::thread thread_;
};

class EdgeTest : public ::testing::Test {
 protected:
  EdgeTest() {
    char name[] = "/tmp/dsec-edge-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~EdgeTest() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

}  // namespace dsec::edge
