#include "cli/exec_stream.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "cli/table.h"
#include "sys/file.h"

namespace dsec::cli {
namespace {

constexpr std::size_t kInputAhead = 256 << 10;  // of standard input, not yet taken by the server
constexpr int kStream = 1;                      // this client's one stream on the socket

// Ctrl-P Ctrl-Q leaves a terminal without ending the command, as docker's.
constexpr char kDetachFirst = 0x10;
constexpr char kDetachSecond = 0x11;

std::string signal_text(int number) { return std::to_string(number); }

class Session {
 public:
  Session(Context& context, std::string ref, const StreamOptions& options) : context_(context), ref_(std::move(ref)), options_(options) {}

  Result<StreamOutcome> run(json::object first) {
    DSEC_ASSIGN(net::BlockingClient * http, context_.client());
    auto socket = http->websocket(sandbox_target(ref_, "/exec/stream"));
    if (!socket.ok()) return context_.explained(std::move(socket).error());
    socket_.emplace(std::move(socket).value());
    DSEC_ASSIGN(SignalWatch signals, SignalWatch::watch({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH}));
    std::optional<RawMode> raw;
    if (options_.tty && options_.interactive && is_terminal(STDIN_FILENO)) {
      auto entered = RawMode::enter();
      if (!entered.ok()) return std::move(entered).error();
      raw.emplace(std::move(entered).value());
    }
    window_ = window_size();
    control(std::move(first));
    reading_ = options_.interactive;
    while (!outcome_) {
      DSEC_TRY(socket_->pump());
      DSEC_TRY(take_messages());
      if (outcome_) break;
      pollfd waiting[3] = {{socket_->fd(), static_cast<short>(POLLIN | (socket_->pending_bytes() ? POLLOUT : 0)), 0},
                           {signals.fd(), POLLIN, 0},
                           {reading_ && started_ && socket_->pending_bytes() < kInputAhead ? STDIN_FILENO : -1, POLLIN, 0}};
      if (::poll(waiting, 3, socket_->readable_without_poll() ? 0 : -1) < 0 && errno != EINTR) return errno_error("poll", errno);
      if (waiting[1].revents) on_signals(signals);
      if (waiting[2].revents) on_input();
    }
    return *outcome_;
  }

 private:
  void control(json::object message) {
    message["id"] = kStream;
    socket_->send(true, json::serialize(message));
  }

  void on_signals(SignalWatch& signals) {
    while (const int number = signals.next()) {
      if (number == SIGWINCH) {
        const WindowSize now = window_size();
        if (options_.tty && now != window_) control({{"type", "resize"}, {"rows", now.rows}, {"columns", now.columns}});
        window_ = now;
        continue;
      }
      if (options_.interrupt == StreamOptions::Interrupt::kDetach || ++interrupts_ > 2) {
        StreamOutcome left;
        left.exit_code = kSignalBase + number;
        left.detached = true;
        left.exec_id = exec_id_;
        outcome_ = left;
        return;
      }
      // The second Ctrl-C is for a command that ignores the first.
      control({{"type", "signal"}, {"signal", signal_text(interrupts_ == 1 ? number : SIGKILL)}});
    }
  }

  void on_input() {
    char part[16 << 10];
    const ssize_t got = ::read(STDIN_FILENO, part, sizeof part);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (got <= 0) {
      reading_ = false;
      control({{"type", "stdin_end"}});
      return;
    }
    const std::string_view bytes(part, static_cast<std::size_t>(got));
    if (options_.tty) {
      for (const char c : bytes) {
        if (c == kDetachSecond && last_input_ == kDetachFirst) {
          StreamOutcome left;
          left.exit_code = kOk;
          left.detached = true;
          left.exec_id = exec_id_;
          outcome_ = left;
          return;
        }
        last_input_ = c;
      }
    }
    std::string frame(1, '\0');
    frame += std::string("\0\0\0\x01", 4);
    frame += bytes;
    socket_->send(false, frame);
  }

  Result<void> take_messages() {
    while (!outcome_) {
      DSEC_ASSIGN(const auto message, socket_->next());
      if (!message) return {};
      if (!message->text) {
        if (message->bytes.size() < 5) continue;
        const int target = message->bytes[0] == 2 ? STDERR_FILENO : STDOUT_FILENO;
        auto written = sys::write_all(target, std::string_view(message->bytes).substr(5));
        // Whoever read our output has gone (`| head`): the command learns of it as it would here.
        if (!written.ok() && written.error().error_number() == EPIPE) control({{"type", "signal"}, {"signal", signal_text(SIGPIPE)}});
        continue;
      }
      boost::system::error_code failure;
      const json::value value = json::parse(message->bytes, failure);
      if (failure || !value.is_object()) return Error(ErrorCode::kInternal, "the server sent a malformed control message");
      DSEC_TRY(on_control(value.get_object()));
    }
    return {};
  }

  Result<void> on_control(const json::object& message) {
    const std::string type = text_at(message, "type");
    if (type == "started") {
      started_ = true;
      exec_id_ = text_at(message, "exec_id");
    } else if (type == "exited") {
      StreamOutcome done;
      done.exit_code = exit_code_of(message);
      done.exec_id = exec_id_;
      if (const std::string error = text_at(message, "error"); !error.empty()) note("dsec: " + printable(error));
      if (text_at(message, "truncated") == "true") note("dsec: output past its limit was dropped");
      outcome_ = done;
    } else if (type == "gap") {
      note("dsec: " + std::to_string(number_at(message, "next_offset") - number_at(message, "offset")) + " bytes of " + text_at(message, "stream") +
           " are no longer held");
    } else if (type == "error") {
      // Input or a signal for a command that is just ending: its result is on the way.
      if (started_ && number_at(message, "status") != 500) return {};
      HttpAnswer as_answer;
      as_answer.status = static_cast<int>(number_at(message, "status"));
      as_answer.body = json::serialize(message);
      return net::error_of(as_answer);
    }
    return {};
  }

  Context& context_;
  const std::string ref_;
  const StreamOptions options_;
  std::optional<net::WebSocketClient> socket_;
  std::optional<StreamOutcome> outcome_;
  std::string exec_id_;
  WindowSize window_;
  bool reading_ = false;
  bool started_ = false;
  int interrupts_ = 0;
  char last_input_ = 0;
};

}  // namespace

int exit_code_of(const json::object& result) {
  if (text_at(result, "timed_out") == "true") return kTimedOut;
  const json::value* code = result.if_contains("exit_code");
  if (code && (code->is_int64() || code->is_uint64())) return static_cast<int>(number_at(result, "exit_code"));
  const std::string signal = text_at(result, "signal");
  if (signal.empty()) return kDsecFailed;
  int number = static_cast<int>(number_at(result, "signal"));
  const std::string_view name = std::string_view(signal).starts_with("SIG") ? std::string_view(signal).substr(3) : std::string_view(signal);
  for (int candidate = 1; number == 0 && candidate < 32; ++candidate)
    if (const char* known = sigabbrev_np(candidate); known && name == known) number = candidate;
  return number == 0 ? kDsecFailed : kSignalBase + number;
}

Result<StreamOutcome> run_stream(Context& context, const std::string& ref, json::object exec, const StreamOptions& options) {
  // Standard input is open on a stream unless the command gets one.
  if (!options.interactive) exec["stdin"] = "";
  json::object start = {{"type", "start"}, {"exec", exec}};
  const WindowSize window = window_size();
  if (options.tty) start["terminal"] = {{"rows", window.rows}, {"columns", window.columns}};
  return Session(context, ref, options).run(std::move(start));
}

Result<StreamOutcome> attach_stream(Context& context, const std::string& ref, const std::string& exec_id, const StreamOptions& options) {
  return Session(context, ref, options).run({{"type", "attach"}, {"exec_id", exec_id}});
}

}  // namespace dsec::cli
