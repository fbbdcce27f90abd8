#include "agent/file_service.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "agent/worker_channel.h"
#include "base/fail_point.h"

namespace dsec::agent {
namespace {

using protocol::MessageType;

constexpr std::size_t kWorkerLimit = 16;
constexpr std::size_t kWatchLimit = 32;  // beside the workers: a watch does not end by itself
constexpr std::size_t kJobLimit = 1024;

}  // namespace

void FileService::request(protocol::FileRequest request) {
  const std::uint64_t id = request.request_id;
  if (jobs_.contains(id)) return;  // its answer is on the way
  if (jobs_.size() >= kJobLimit) return finish(id, EAGAIN, "too many file requests");
  if (request.verb == protocol::FileVerb::kWatch && watches_ >= kWatchLimit) return finish(id, EAGAIN, "too many watches");
  Job& job = jobs_[id];
  job.request = std::move(request);
  if (job.is_watch()) return start(job);
  waiting_.push_back(id);
  start_next();
}

void FileService::start_next() {
  while (workers_ < kWorkerLimit && !waiting_.empty()) {
    const std::uint64_t id = waiting_.front();
    waiting_.pop_front();
    if (const auto found = jobs_.find(id); found != jobs_.end()) start(found->second);
  }
}

void FileService::start(Job& job) {
  const std::uint64_t id = job.request.request_id;
  if (auto step = fail_point("agent.file.start"); !step.ok()) return finish(id, EIO, step.error().message());
  auto worker = start_file_worker(job.request, standing_, peer_.forget_secrets);
  if (!worker.ok()) return finish(id, worker.error().error_number(), worker.error().message());
  job.worker = std::move(*worker);
  ++(job.is_watch() ? watches_ : workers_);
  loop_.watch(job.worker.socket.get(), EPOLLIN, [this, id](std::uint32_t) { on_event(id); });
  flush_upload(job);
}

void FileService::on_event(std::uint64_t id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  flush_upload(found->second);
  if (found->second.window_open()) put_in_turn(id, found->second);
  update_interest(found->second);
}

void FileService::put_in_turn(std::uint64_t id, Job& job) {
  if (job.in_turn) return;
  job.in_turn = true;
  turns_.push_back(id);
  peer_.data_ready();
}

// While it is the job's turn, or its window is full, reading is not what is waited for.
void FileService::update_interest(Job& job) {
  if (!job.worker.socket.valid()) return;
  const int socket = job.worker.socket.get();
  std::uint32_t interest = 0;
  if (!job.in_turn && job.window_open()) interest |= EPOLLIN;
  if (!job.upload.empty()) interest |= EPOLLOUT;
  if (interest == 0) {
    loop_.forget(socket);  // the end of the worker would be told without pause
  } else if (loop_.watches(socket)) {
    loop_.change(socket, interest);
  } else {
    loop_.watch(socket, interest, [this, id = job.request.request_id](std::uint32_t) { on_event(id); });
  }
}

std::string FileService::next_data() {
  while (!turns_.empty()) {
    const std::uint64_t id = turns_.front();
    turns_.pop_front();
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) continue;
    Job& job = found->second;
    if (!job.window_open()) {
      job.in_turn = false;
      update_interest(job);
      continue;
    }
    std::string message(protocol::kMaxFrameBody + 1, '\0');
    ssize_t got = ::recv(job.worker.socket.get(), message.data(), message.size(), MSG_DONTWAIT);
    // A worker that answered before it had read all is told as a reset, once; the
    // answer is behind it.
    if (got < 0 && errno == ECONNRESET) got = ::recv(job.worker.socket.get(), message.data(), message.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      job.in_turn = false;
      update_interest(job);
      continue;
    }
    if (got <= 0) {
      finish(id, EIO, "the process that served the request was ended");
      continue;
    }
    message.resize(static_cast<std::size_t>(got));
    const char kind = message[0];
    message.erase(0, 1);
    if (kind == kWorkerReply) {
      auto reply = protocol::decode<protocol::FileReply>(message);
      if (!reply.ok()) {
        finish(id, EIO, "the process that served the request failed");
        continue;
      }
      reply->request_id = id;
      if (reply->more) {
        turns_.push_back(id);
      } else {
        remove(id);
      }
      return protocol::encode_frame(MessageType::kFileReply, protocol::encode(*reply));
    }
    protocol::FileData data{.request_id = id, .offset = job.sent, .bytes = std::move(message), .end = kind == kWorkerEnd};
    job.sent += data.bytes.size();
    turns_.push_back(id);
    return protocol::encode_frame(MessageType::kFileData, protocol::encode(data));
  }
  return {};
}

void FileService::acknowledge(const protocol::FileAck& ack) {
  const auto found = jobs_.find(ack.request_id);
  if (found == jobs_.end()) return;
  Job& job = found->second;
  if (ack.offset <= job.acknowledged || ack.offset > job.sent) return;
  job.acknowledged = ack.offset;
  update_interest(job);
}

void FileService::take_data(protocol::FileData data) {
  const auto found = jobs_.find(data.request_id);
  if (found == jobs_.end()) return;  // it has failed meanwhile, and said so
  Job& job = found->second;
  if (data.offset != job.received || job.upload_bytes + data.bytes.size() > protocol::kOutputWindow) {
    return finish(data.request_id, EPROTO, "data out of order, or past the window");
  }
  job.received += data.bytes.size();
  job.upload_bytes += data.bytes.size();
  if (!data.bytes.empty()) job.upload.push_back(std::string(1, kWorkerData) + data.bytes);
  if (data.end) job.upload.push_back(std::string(1, kWorkerEnd));
  flush_upload(job);
  update_interest(job);
}

void FileService::flush_upload(Job& job) {
  if (!job.worker.socket.valid()) return;
  const std::uint64_t before = job.delivered;
  while (!job.upload.empty()) {
    const std::string& message = job.upload.front();
    const ssize_t put = ::send(job.worker.socket.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0) {
      if (errno != EAGAIN && errno != EINTR) {
        job.upload.clear();  // its last reply, or its end, is there to be read
        job.upload_bytes = 0;
      }
      break;
    }
    job.delivered += message.size() - 1;
    job.upload_bytes -= message.size() - 1;
    job.upload.pop_front();
  }
  if (job.delivered != before) {
    peer_.send(MessageType::kFileAck, protocol::encode(protocol::FileAck{.request_id = job.request.request_id, .offset = job.delivered}));
  }
}

void FileService::finish(std::uint64_t id, int error_number, std::string message) {
  remove(id);
  peer_.send(MessageType::kFileReply,
             protocol::encode(protocol::FileReply{.request_id = id, .error_number = error_number != 0 ? error_number : EIO, .message = std::move(message)}));
}

void FileService::remove(std::uint64_t id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  Job& job = found->second;
  if (job.worker.pidfd.valid()) {
    // It may have answered and be about to end; it never does more than its request.
    ::syscall(SYS_pidfd_send_signal, job.worker.pidfd.get(), SIGKILL, nullptr, 0);
    loop_.forget(job.worker.socket.get());
    --(job.is_watch() ? watches_ : workers_);
  }
  jobs_.erase(found);
  loop_.later([this] { start_next(); });
}

void FileService::cancel(std::uint64_t request_id) {
  std::erase(waiting_, request_id);
  remove(request_id);
}

void FileService::drop_all() {
  waiting_.clear();
  while (!jobs_.empty()) remove(jobs_.begin()->first);
  turns_.clear();
}

}  // namespace dsec::agent
