#include "stored/server.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <cerrno>
#include <cstdio>
#include <condition_variable>
#include <cstring>
#include <thread>
#include <vector>

#include "base/log.h"
#include "stored/cache_budget.h"
#include "stored/fault_log.h"
#include "stored/fuse_channel.h"
#include "stored/prefetch_verdict.h"
#include "sys/file.h"
#include "sys/worker_pool.h"

namespace dsec::stored {

namespace {

constexpr std::size_t kFetchQueue = 1 << 20;  // the kernel bounds what is under way
constexpr auto kHousekeeping = std::chrono::seconds(1);
constexpr std::uint64_t kForeverSeconds = 3600;  // names and sizes of immutable files

template <typename T>
T body_as(const FuseRequest& request) {
  T value{};
  std::memcpy(&value, request.body.data(), std::min(request.body.size(), sizeof value));
  return value;
}

fuse_attr attributes_of(std::uint64_t node, std::uint64_t bytes) {
  fuse_attr attributes{};
  attributes.ino = node;
  attributes.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0500 : S_IFREG | 0400;
  attributes.nlink = 1;
  attributes.size = bytes;
  attributes.blocks = (bytes + 511) / 512;
  attributes.blksize = 4096;
  return attributes;
}

// While it waits for its answer it cannot go away, unless it is killed. "" for a
// kernel thread, which reads for somebody else.
std::string cgroup_of(std::uint32_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  char program[8];
  if (::readlink((process + "/exe").c_str(), program, sizeof program) < 0) return "";
  const auto text = sys::read_file(process + "/cgroup");
  const std::size_t at = text.ok() ? text->find("0::") : std::string::npos;
  if (at == std::string::npos) return "";
  return text->substr(at + 3, text->find('\n', at) - at - 3);
}

boost::json::object json_of(const BlobCounts& counts) {
  return {{"hit_bytes", counts.hit_bytes},
          {"fetched_bytes", counts.fetched_bytes},
          {"failed_chunks", counts.failed_chunks},
          {"touched_bytes", counts.touched_bytes},
          {"demand_misses", counts.demand_misses},
          {"prefetched_bytes", counts.prefetched_bytes},
          {"useful_bytes", counts.useful_bytes},
          {"wasted_bytes", counts.prefetched_bytes - std::min(counts.prefetched_bytes, counts.useful_bytes)}};
}

boost::json::object json_of(const origin::PeerCounts& counts) {
  return {{"peer_bytes", counts.peer_bytes.load()}, {"store_bytes", counts.store_bytes.load()}, {"faults", counts.faults.load()}, {"wrong", counts.wrong.load()}};
}

boost::json::object json_of(const PeerServerCounts& counts) {
  return {{"bytes", counts.bytes.load()}, {"busy", counts.busy.load()}, {"unsigned", counts.unsigned_.load()}};
}

// Whole for who reads it, and not synced: what is told each second is no state, and
// a commit of the file system's journal each second would hold up who launches sandboxes.
Result<void> show(const std::string& path, std::string_view text) {
  const std::string temporary = path + ".new";
  DSEC_ASSIGN(const sys::Fd file, sys::open_at(AT_FDCWD, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600));
  DSEC_TRY(sys::write_all(file.get(), text));
  if (::rename(temporary.c_str(), path.c_str()) != 0) return errno_error("rename to " + path, errno);
  return {};
}

int errno_of(const Error& error) { return error.code() == ErrorCode::kNotFound ? ENOENT : EIO; }

class Server {
 public:
  Server(const ServerOptions& options, const FuseChannel& channel, origin::Origin& origin, FaultLog& faults)
      : options_(options),
        channel_(channel),
        faults_(faults),
        budget_(options.cache_bytes),
        blobs_(options.folders, origin, budget_, options.patience, options.traces ? options.prefetch.window : Duration()),
        fetches_({.name = "fetch", .threads = options.fetch_threads, .queue_limit = kFetchQueue}),
        local_chunks_(blobs_, options.folders.layers) {
    if (!options.traces) return;
    prefetcher_ = std::make_unique<Prefetcher>(options.prefetch, Prefetcher::Node{.origin = origin,
                                                                                 .budget = budget_,
                                                                                 .state = options.folders.state,
                                                                                 .fetch = [this](const auto& blob, ChunkRun run) { fetch(blob, run, FetchFor::kLater); },
                                                                                 .demand_is_busy = [this] { return demand_is_busy(); }});
  }

  Result<void> run() {
    DSEC_TRY(blobs_.load());
    // Fails on a filesystem that nobody has served yet: it has not asked anything.
    (void)channel_.ask_again();
    serve_peers();
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < options_.request_threads; ++i) threads.emplace_back([this] { answer_requests(); });
    std::thread housekeeper([this] { keep_house(); });
    for (std::thread& thread : threads) thread.join();
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    housekeeper.join();
    return {};
  }

 private:
  bool demand_is_busy() const { return demand_ >= options_.fetch_threads / 2; }

  // Nobody's reads depend on it: without it this node is one that gives nothing.
  void serve_peers() {
    if (!options_.peers) return;
    auto started = PeerServer::start(options_.peers->at, options_.peers->key, local_chunks_, [this] { return demand_is_busy(); });
    if (started.ok()) peer_server_ = std::move(started).value();
    else log_error("other nodes cannot read from this one", {{"why", started.error().message()}});
  }

  void answer_requests() {
    std::vector<char> buffer(FuseChannel::kBufferBytes);
    while (true) {
      const auto request = channel_.next(buffer);
      if (!request.ok()) return log_error("requests of the kernel cannot be read", {{"why", request.error().message()}});
      if (!*request) return;
      answer(**request);
    }
  }

  void answer(const FuseRequest& request) {
    switch (request.opcode) {
      case FUSE_INIT: return channel_.answer_init(request);
      case FUSE_LOOKUP: return look_up(request);
      case FUSE_GETATTR: return tell_attributes(request);
      case FUSE_OPEN: return channel_.answer_with(request.unique, fuse_open_out{.fh = 0, .open_flags = FOPEN_KEEP_CACHE, .padding = 0});
      case FUSE_OPENDIR: return channel_.answer_with(request.unique, fuse_open_out{});
      case FUSE_READ: return read(request);
      case FUSE_READDIR: return channel_.answer(request.unique, {});  // names are known or not to be had
      case FUSE_STATFS: return channel_.answer_with(request.unique, fuse_statfs_out{});
      case FUSE_RELEASE:
      case FUSE_RELEASEDIR:
      case FUSE_DESTROY: return channel_.answer(request.unique, {});
      case FUSE_FORGET:
      case FUSE_BATCH_FORGET:
      case FUSE_INTERRUPT: return;  // no answer is awaited
      default: return channel_.answer_error(request.unique, ENOSYS);  // a flush too: then nobody's close waits for us
    }
  }

  void look_up(const FuseRequest& request) {
    const std::string name(request.body.data(), ::strnlen(request.body.data(), request.body.size()));
    const auto blob = blobs_.find(name);
    if (!blob.ok()) return channel_.answer_error(request.unique, errno_of(blob.error()));
    fuse_entry_out out{};
    out.nodeid = BlobTable::node_of(name);
    out.entry_valid = out.attr_valid = kForeverSeconds;
    out.attr = attributes_of(out.nodeid, (*blob)->bytes());
    channel_.answer_with(request.unique, out);
  }

  void tell_attributes(const FuseRequest& request) {
    std::uint64_t bytes = 0;
    if (request.node != FUSE_ROOT_ID) {
      const auto blob = blobs_.find_node(request.node);
      if (!blob.ok()) return channel_.answer_error(request.unique, errno_of(blob.error()));
      bytes = (*blob)->bytes();
    }
    fuse_attr_out out{};
    out.attr_valid = kForeverSeconds;
    out.attr = attributes_of(request.node, bytes);
    channel_.answer_with(request.unique, out);
  }

  void read(const FuseRequest& request) {
    const auto wanted = body_as<fuse_read_in>(request);
    const auto blob = blobs_.find_node(request.node);
    if (!blob.ok()) return channel_.answer_error(request.unique, errno_of(blob.error()));
    if (wanted.size > FuseChannel::kMaxReadBytes) return channel_.answer_error(request.unique, EINVAL);
    const auto runs = (*blob)->read(wanted.offset, wanted.size,
                                    [this, unique = request.unique, pid = request.reader_pid, hex = (*blob)->hex(), begin = std::chrono::steady_clock::now()](
                                        const Result<std::string_view>& bytes) { answer_read(unique, pid, hex, begin, bytes); });
    for (const ChunkRun& run : runs) submit(*blob, run);
    if (prefetcher_ && (*blob)->take_first_read()) prefetcher_->begin(*blob);
  }

  void submit(const std::shared_ptr<Blob>& blob, ChunkRun run) {
    ++demand_;
    const auto work = [this, blob, run] {
      fetch(blob, run, FetchFor::kReader);
      --demand_;
    };
    if (!fetches_.submit(work).ok()) work();
  }

  void answer_read(std::uint64_t unique, std::uint32_t pid, const std::string& hex, Instant begin, const Result<std::string_view>& bytes) {
    const Duration waited = std::chrono::steady_clock::now() - begin;
    // Noted first: once the reader goes on, its result may be judged.
    if (!bytes.ok() || waited >= options_.stall_limit)
      faults_.note({.kind = bytes.ok() ? FaultKind::kStall : FaultKind::kError,
                    .data = hex,
                    .reader_pid = pid,
                    .reader_cgroup = cgroup_of(pid),
                    .waited_ms = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(waited).count()),
                    .why = bytes.ok() ? "the store was slow" : bytes.error().message()});
    if (bytes.ok()) channel_.answer(unique, *bytes);
    else channel_.answer_error(unique, EIO);
  }

  void fetch(const std::shared_ptr<Blob>& blob, ChunkRun run, FetchFor whom) {
    // A reader who comes for what is fetched for later has the whole time after that.
    const Duration patience = whom == FetchFor::kReader ? options_.fetch_deadline : options_.fetch_deadline / 3;
    const Blob::Fetched fetched = blob->fetch(run, Deadline::in(patience), whom);
    for (const std::uint64_t chunk : fetched.kept) budget_.added(blob, chunk, whom);
    for (const ChunkRun& wanted : fetched.still_wanted) submit(blob, wanted);
    if (fetched.whole) blobs_.hand_over(blob);
  }

  void keep_house() {
    std::string last;
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, kHousekeeping, [this] { return stopping_; })) {
      lock.unlock();
      blobs_.drop_removed();
      if (prefetcher_) prefetcher_->look_around(std::chrono::steady_clock::now());
      if (std::string stats = stats_text(); stats != last) {
        if (const auto shown = show(options_.folders.state + "/stats.json", stats); shown.ok()) last = std::move(stats);
      }
      lock.lock();
    }
  }

  std::string stats_text() const {
    boost::json::object objects;
    BlobCounts total;
    for (const auto& [hex, counts] : blobs_.counts()) {
      boost::json::object object = json_of(counts);
      object["prefetch_off"] = prefetch_is_off(options_.folders.state, hex);
      objects[hex] = std::move(object);
      total += counts;
    }
    boost::json::object all = {
        {"cached_bytes", budget_.used_bytes()}, {"evicted_bytes", budget_.evicted_bytes()}, {"total", json_of(total)}, {"objects", std::move(objects)}};
    if (options_.asked_peers != nullptr) all["asked_peers"] = json_of(*options_.asked_peers);
    if (peer_server_) all["served_peers"] = json_of(peer_server_->counts());
    return boost::json::serialize(all) + "\n";
  }

  const ServerOptions& options_;
  const FuseChannel& channel_;
  FaultLog& faults_;
  CacheBudget budget_;
  BlobTable blobs_;
  std::atomic<std::size_t> demand_{0};  // runs that readers wait for
  sys::WorkerPool fetches_;
  std::unique_ptr<Prefetcher> prefetcher_;
  const LocalChunks local_chunks_;
  std::unique_ptr<PeerServer> peer_server_;
  std::mutex mutex_;  // guards stopping_
  std::condition_variable wake_;
  bool stopping_ = false;
};

// Two processes that cache in one folder would drop each other's chunks. The one
// before is gone or about to be: its end takes the lock with it.
Result<sys::Fd> become_the_only_one(const std::string& state) {
  DSEC_ASSIGN(sys::Fd lock, sys::open_at(AT_FDCWD, state + "/lock", O_RDWR | O_CREAT, 0600));
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  while (::fcntl(lock.get(), F_OFD_SETLKW, &whole) != 0)
    if (errno != EINTR) return errno_error("lock " + state, errno);
  return lock;
}

}  // namespace

Result<void> serve(const ServerOptions& options, sys::Fd channel_fd, origin::Origin& origin) {
  DSEC_TRY(sys::make_directories(options.folders.state, 0700));
  DSEC_ASSIGN(const sys::Fd lock, become_the_only_one(options.folders.state));
  DSEC_ASSIGN(const std::unique_ptr<FaultLog> faults, FaultLog::open(options.folders.state + "/faults.log"));
  const FuseChannel channel(channel_fd.get());
  Server server(options, channel, origin, *faults);
  return server.run();
}

}  // namespace dsec::stored
