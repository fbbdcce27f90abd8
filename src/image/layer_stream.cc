#include "image/layer_stream.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "erofs/digest.h"
#include "image/confined_worker.h"

namespace dsec::image {

namespace {

constexpr std::size_t kPipeBytes = 1 << 20;

Result<std::pair<sys::Fd, sys::Fd>> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("make a pipe", errno);
  (void)::fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);  // as large as the host lets it be
  return std::pair(sys::Fd(ends[0]), sys::Fd(ends[1]));
}

}  // namespace

Result<std::unique_ptr<LayerStream>> LayerStream::start(ImportJobs& jobs, const Options& options, int blob) {
  std::unique_ptr<LayerStream> stream(new LayerStream(jobs, options, blob));
  DSEC_ASSIGN(auto raw, make_pipe());
  DSEC_ASSIGN(auto hashed, make_pipe());
  stream->output_ = std::move(hashed.first);
  stream->decompressor_ = std::thread([self = stream.get(), into = std::move(raw.second)]() mutable { self->decompress(std::move(into)); });
  stream->relayer_ = std::thread([self = stream.get(), from = std::move(raw.first), to = std::move(hashed.second)]() mutable { self->relay(std::move(from), std::move(to)); });
  return stream;
}

LayerStream::~LayerStream() {
  close_output(Reader::kFailed);
  join();
}

void LayerStream::close_output(Reader reader) {
  if (reader == Reader::kFailed) given_up_ = true;
  output_.reset();
}

void LayerStream::join() {
  if (decompressor_.joinable()) decompressor_.join();
  if (relayer_.joinable()) relayer_.join();
}

Result<std::string> LayerStream::digest() {
  join();
  DSEC_TRY(failure());
  DSEC_TRY(decompressed_);
  return relayed_;
}

// What ended because this side gave up is no reason.
Result<void> LayerStream::failure() {
  given_up_ = true;
  join();
  if (!relayed_.ok() && relayed_.error().code() != ErrorCode::kCancelled) return relayed_.error();
  if (!decompressed_.ok() && decompressed_.error().code() != ErrorCode::kCancelled) return decompressed_;
  return {};
}

void LayerStream::decompress(sys::Fd into) {
  decompressed_ = jobs_.with_job([&](int, const std::string& directory) -> Result<void> {
    DSEC_ASSIGN(const ImportResult done, run_confined({.helper = options_.helper,
                                                       .job_directory = directory,
                                                       .first_id = options_.first_id,
                                                       .request = {.mode = ImportMode::kDecompress, .max_bytes = options_.max_bytes, .max_entries = 1},
                                                       .input = blob_,
                                                       .passed = {into.get()},
                                                       .deadline = options_.deadline,
                                                       .on_progress = {},
                                                       .cancelled = &given_up_}));
    return {};
  });
}

void LayerStream::relay(sys::Fd from, sys::Fd to) {
  // A reader that stops is told by EPIPE.
  sigset_t broken_pipe;
  ::sigemptyset(&broken_pipe);
  ::sigaddset(&broken_pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  relayed_ = pass_on(from.get(), to);
  if (!relayed_.ok()) given_up_ = true;
}

Result<std::string> LayerStream::pass_on(int from, sys::Fd& to) {
  erofs::Sha256 hash;
  std::vector<char> buffer(256 << 10);
  std::uint64_t passed = 0;
  while (!given_up_) {
    const ssize_t got = ::read(from, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_error("read a layer", errno);
    if (got == 0) return "sha256:" + hash.hex();
    const std::string_view bytes(buffer.data(), static_cast<std::size_t>(got));
    passed += bytes.size();
    if (passed > options_.max_bytes) return Error(ErrorCode::kTooLarge, "a layer decompresses to more than " + std::to_string(options_.max_bytes) + " bytes");
    hash.update(bytes);
    if (!to) continue;
    Result<void> written = sys::write_all(to.get(), bytes);
    if (written.ok()) continue;
    if (written.error().error_number() != EPIPE) return std::move(written).error();
    to.reset();
  }
  return Error(ErrorCode::kCancelled, "the layer is not wanted any more");
}

}  // namespace dsec::image
