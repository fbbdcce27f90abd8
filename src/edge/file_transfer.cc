#include "edge/file_transfer.h"

#include <cerrno>

#include "base/errno_text.h"
#include "edge/live_sandbox.h"

namespace dsec::edge {

using protocol::MessageType;

Error file_error(int error_number, const std::string& path, const std::string& message) {
  ErrorCode code = ErrorCode::kInternal;
  switch (error_number) {
    case ENOENT: code = ErrorCode::kNotFound; break;
    case EACCES:
    case EPERM:
    case EROFS: code = ErrorCode::kPermissionDenied; break;
    case EEXIST:
    case ENOTEMPTY:
    case EBUSY:
    case ETXTBSY: code = ErrorCode::kConflict; break;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case EAGAIN: code = ErrorCode::kExhausted; break;
    case EFBIG: code = ErrorCode::kTooLarge; break;
    case EINVAL:
    case ENOTDIR:
    case EISDIR:
    case EXDEV:  // another file system, or a name that leads out of where it must stay
    case ENAMETOOLONG:
    case ELOOP:
    case EBADMSG:
    case EILSEQ: code = ErrorCode::kInvalidArgument; break;
    case ENOSYS:
    case EOPNOTSUPP: code = ErrorCode::kUnsupported; break;
    case ECANCELED: code = ErrorCode::kCancelled; break;
    case ETIMEDOUT: code = ErrorCode::kDeadlineExceeded; break;
    default: break;
  }
  std::string text = path + ": ";
  text += error_number != 0 ? errno_text(error_number) : "failed";
  if (!message.empty() && message != text) text += " (" + message + ")";
  return Error(code, std::move(text), error_number);
}

FileTransfer::FileTransfer(std::shared_ptr<LiveSandbox> sandbox, protocol::FileRequest request)
    : sandbox_(std::move(sandbox)), request_(std::move(request)) {}

Result<std::unique_ptr<FileTransfer>> FileTransfer::begin(std::shared_ptr<LiveSandbox> sandbox, protocol::FileRequest request) {
  if (!sandbox->channel_open()) return Error(ErrorCode::kUnavailable, "the sandbox cannot be reached now");
  std::unique_ptr<FileTransfer> transfer(new FileTransfer(std::move(sandbox), std::move(request)));
  transfer->request_.request_id = transfer->sandbox_->add_transfer(*transfer);
  transfer->sandbox_->send(MessageType::kFileRequest, protocol::encode(transfer->request_));
  return transfer;
}

bool FileTransfer::writes() const {
  switch (request_.verb) {
    case protocol::FileVerb::kWrite:
    case protocol::FileVerb::kMakeDirectory:
    case protocol::FileVerb::kMove:
    case protocol::FileVerb::kRemove:
    case protocol::FileVerb::kTarIn:
      return true;
    default:
      return false;
  }
}

FileTransfer::~FileTransfer() {
  sandbox_->remove_transfer(request_.request_id);
  if (!reply_ended_ && !lost_)
    sandbox_->send(MessageType::kFileCancel, protocol::encode(protocol::FileCancel{.request_id = request_.request_id}));
}

Error FileTransfer::error_of(const protocol::FileReply& reply) const {
  return file_error(reply.error_number, request_.path, reply.message);
}

asio::awaitable<Result<protocol::FileReply>> FileTransfer::next_reply(Instant by) {
  while (replies_.empty()) {
    if (lost_) co_return Error(ErrorCode::kUnavailable, "the sandbox was lost");
    if (std::chrono::steady_clock::now() >= by) co_return Error(ErrorCode::kDeadlineExceeded, request_.path + ": no answer in time");
    co_await changed_.wait(by);
  }
  protocol::FileReply reply = std::move(replies_.front());
  replies_.pop_front();
  if (reply.error_number != 0) co_return error_of(reply);
  co_return reply;
}

asio::awaitable<Result<std::string>> FileTransfer::next_data(Instant by) {
  while (data_.empty()) {
    if (reply_ended_ && !replies_.empty() && replies_.back().error_number != 0) co_return error_of(replies_.back());
    if (data_ended_) co_return std::string();
    if (lost_) co_return Error(ErrorCode::kUnavailable, "the sandbox was lost");
    if (reply_ended_) co_return std::string();
    if (std::chrono::steady_clock::now() >= by) co_return Error(ErrorCode::kDeadlineExceeded, request_.path + ": no data in time");
    co_await changed_.wait(by);
  }
  std::string bytes = std::move(data_.front());
  data_.pop_front();
  consumed_ += bytes.size();
  acknowledge();
  co_return bytes;
}

void FileTransfer::acknowledge() {
  if (consumed_ - acknowledged_ < protocol::kOutputWindow / 4 && consumed_ != received_) return;
  if (consumed_ == acknowledged_ || data_ended_) return;
  acknowledged_ = consumed_;
  sandbox_->send(MessageType::kFileAck, protocol::encode(protocol::FileAck{.request_id = request_.request_id, .offset = consumed_}));
}

asio::awaitable<Result<void>> FileTransfer::send_data(std::string_view bytes, bool end, Instant by) {
  while (sent_ - sent_acknowledged_ + bytes.size() > protocol::kOutputWindow && !reply_ended_ && !lost_) {
    if (std::chrono::steady_clock::now() >= by) co_return Error(ErrorCode::kDeadlineExceeded, request_.path + ": the sandbox takes no data");
    co_await changed_.wait(by);
  }
  if (lost_) co_return Error(ErrorCode::kUnavailable, "the sandbox was lost");
  if (reply_ended_) {
    if (!replies_.empty() && replies_.back().error_number != 0) co_return error_of(replies_.back());
    co_return Error(ErrorCode::kConflict, request_.path + ": the transfer is over");
  }
  sandbox_->send(
      MessageType::kFileData,
      protocol::encode(protocol::FileData{.request_id = request_.request_id, .offset = sent_, .bytes = std::string(bytes), .end = end}),
      -1, AgentChannel::Lane::kData);
  sent_ += bytes.size();
  co_return Result<void>();
}

void FileTransfer::on_reply(protocol::FileReply reply) {
  if (!reply.more) reply_ended_ = true;
  replies_.push_back(std::move(reply));
  changed_.notify();
}

void FileTransfer::on_data(protocol::FileData data) {
  received_ += data.bytes.size();
  if (data.end) data_ended_ = true;
  if (!data.bytes.empty()) data_.push_back(std::move(data.bytes));
  changed_.notify();
}

void FileTransfer::on_ack(const protocol::FileAck& ack) {
  if (ack.offset > sent_acknowledged_ && ack.offset <= sent_) sent_acknowledged_ = ack.offset;
  changed_.notify();
}

void FileTransfer::on_lost() {
  lost_ = true;
  changed_.notify();
}

}  // namespace dsec::edge
