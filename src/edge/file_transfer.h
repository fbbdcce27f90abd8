// FileTransfer: one request to the agent about files, and what comes back for it.
//
// Event loop only. Data moves under the window of the protocol both ways, so
// that a transfer of any size takes bounded memory and delays nothing else.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "edge/notifier.h"
#include "protocol/agent_messages.h"

namespace dsec::edge {

class LiveSandbox;

class FileTransfer {
 public:
  // Sends the request. kUnavailable when the sandbox cannot be reached now.
  static Result<std::unique_ptr<FileTransfer>> begin(std::shared_ptr<LiveSandbox> sandbox, protocol::FileRequest request);
  // Cancels what is not finished.
  ~FileTransfer();
  FileTransfer(const FileTransfer&) = delete;
  FileTransfer& operator=(const FileTransfer&) = delete;

  // The next reply; the last one has more == false. Its errno is an Error with the path.
  asio::awaitable<Result<protocol::FileReply>> next_reply(Instant by);
  // The next data of kRead and kTarOut; an empty text at the end. An error reply is an Error.
  asio::awaitable<Result<std::string>> next_data(Instant by);
  // Data of kWrite and kTarIn, at most kDataChunk. Waits for room in the window.
  asio::awaitable<Result<void>> send_data(std::string_view bytes, bool end, Instant by);
  bool writes() const;
  bool failed() const { return lost_ || (reply_ended_ && !replies_.empty() && replies_.back().error_number != 0); }

  void on_reply(protocol::FileReply reply);
  void on_data(protocol::FileData data);
  void on_ack(const protocol::FileAck& ack);
  void on_lost();

 private:
  FileTransfer(std::shared_ptr<LiveSandbox> sandbox, protocol::FileRequest request);
  Error error_of(const protocol::FileReply& reply) const;
  void acknowledge();

  std::shared_ptr<LiveSandbox> sandbox_;
  protocol::FileRequest request_;
  std::deque<protocol::FileReply> replies_;
  bool reply_ended_ = false;
  bool lost_ = false;
  std::deque<std::string> data_;
  bool data_ended_ = false;
  std::uint64_t received_ = 0;
  std::uint64_t consumed_ = 0;
  std::uint64_t acknowledged_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t sent_acknowledged_ = 0;
  Notifier changed_;
};

// A typed error for an errno that the agent reported about a path.
Error file_error(int error_number, const std::string& path, const std::string& message);

}  // namespace dsec::edge
