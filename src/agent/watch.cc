// Watch: inotify events of a directory, or of a tree, until the request is cancelled.
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <map>
#include <memory>

#include "agent/command_plan.h"
#include "agent/file_verbs.h"

namespace dsec::agent {
namespace {

using protocol::WatchEvent;
using protocol::WatchKind;

constexpr std::size_t kWatchLimit = 8192;
constexpr std::size_t kReplyBytes = 24 << 10;
constexpr std::uint32_t kMask = IN_CREATE | IN_CLOSE_WRITE | IN_MODIFY | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB | IN_DELETE_SELF;

class Watcher {
 public:
  Watcher(WorkerChannel& channel, bool recursive) : channel_(channel), recursive_(recursive), inotify_(::inotify_init1(IN_CLOEXEC)) {}

  Result<void> add(const std::string& path, bool tell);
  Result<void> run();

 private:
  void take(const inotify_event& event);
  void tell(WatchKind kind, std::string path);
  void flush();

  WorkerChannel& channel_;
  const bool recursive_;
  sys::Fd inotify_;
  std::map<int, std::string> directories_;
  std::vector<WatchEvent> events_;
  std::size_t bytes_ = 0;
  bool ended_ = false;
};

// `tell`: what stands in a directory that has just come is news.
Result<void> Watcher::add(const std::string& path, bool tell_content) {
  if (directories_.size() >= kWatchLimit) {
    tell(WatchKind::kOverflow, path);
    return {};
  }
  const int descriptor = ::inotify_add_watch(inotify_.get(), path.c_str(), kMask | (directories_.empty() ? 0u : IN_DONT_FOLLOW | IN_ONLYDIR));
  if (descriptor < 0) return errno_error(path, errno);
  directories_[descriptor] = path;
  if (!recursive_) return {};
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(path.c_str()), ::closedir);
  if (!stream) return {};
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    const std::string child = join_path(path, name);
    if (tell_content) tell(WatchKind::kCreate, child);
    struct stat status {};
    if (::lstat(child.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) (void)add(child, tell_content).ok();
  }
  return {};
}

void Watcher::tell(WatchKind kind, std::string path) {
  if (!events_.empty() && kind == WatchKind::kWrite && events_.back().kind == kind && events_.back().path == path) return;
  bytes_ += path.size() + 16;
  events_.push_back({.kind = kind, .path = std::move(path)});
  if (bytes_ >= kReplyBytes) flush();
}

void Watcher::flush() {
  if (events_.empty()) return;
  channel_.reply({.more = true, .events = std::move(events_)});
  events_ = {};
  bytes_ = 0;
}

void Watcher::take(const inotify_event& event) {
  if ((event.mask & IN_Q_OVERFLOW) != 0) return tell(WatchKind::kOverflow, "");
  const auto found = directories_.find(event.wd);
  if (found == directories_.end()) return;
  const std::string directory = found->second;
  const std::string path = event.len > 0 ? join_path(directory, std::string_view(event.name)) : directory;
  if ((event.mask & IN_IGNORED) != 0) {
    const bool first = event.wd == directories_.begin()->first;
    directories_.erase(found);
    ended_ = ended_ || first;
    return;
  }
  if ((event.mask & (IN_CREATE | IN_MOVED_TO)) != 0) {
    tell((event.mask & IN_CREATE) != 0 ? WatchKind::kCreate : WatchKind::kRename, path);
    if (recursive_ && (event.mask & IN_ISDIR) != 0) (void)add(path, true).ok();
  } else if ((event.mask & (IN_DELETE | IN_DELETE_SELF)) != 0) {
    if ((event.mask & IN_DELETE) != 0 || directory == directories_.begin()->second) tell(WatchKind::kRemove, path);
  } else if ((event.mask & IN_MOVED_FROM) != 0) {
    tell(WatchKind::kRename, path);
  } else if ((event.mask & (IN_MODIFY | IN_CLOSE_WRITE)) != 0) {
    tell(WatchKind::kWrite, path);
  } else if ((event.mask & IN_ATTRIB) != 0) {
    tell(WatchKind::kChmod, path);
  }
}

Result<void> Watcher::run() {
  alignas(inotify_event) char buffer[16 << 10];
  while (!ended_) {
    const ssize_t got = ::read(inotify_.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return errno_error("inotify", errno);
    for (ssize_t at = 0; at < got;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
      take(*event);
      at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
    }
    flush();
  }
  return {};
}

}  // namespace

// The first reply, without events, says that the watch stands.
Result<protocol::FileReply> serve_watch(const protocol::FileRequest& request, WorkerChannel& channel) {
  Watcher watcher(channel, request.recursive);
  DSEC_TRY(watcher.add(request.path, false));
  channel.reply({.more = true});
  DSEC_TRY(watcher.run());
  return protocol::FileReply{};
}

}  // namespace dsec::agent
