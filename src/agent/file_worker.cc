#include "agent/file_worker.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "agent/accounts.h"
#include "agent/file_verbs.h"
#include "agent/worker_channel.h"

namespace dsec::agent {
namespace {

constexpr int kChannelFd = 3;
constexpr std::uint64_t kRootFileCapabilities =
    1ull << CAP_CHOWN | 1ull << CAP_DAC_OVERRIDE | 1ull << CAP_DAC_READ_SEARCH | 1ull << CAP_FOWNER | 1ull << CAP_FSETID;

bool keep_capabilities(std::uint64_t wanted) {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[2]{};
  if (::syscall(SYS_capget, &header, &data[0]) != 0) return false;
  for (int half = 0; half < 2; ++half) {
    data[half].permitted &= static_cast<std::uint32_t>(wanted >> (32 * half));
    data[half].effective = data[half].permitted;
    data[half].inheritable = 0;
  }
  return ::syscall(SYS_capset, &header, &data[0]) == 0;
}

// The rights over files of `account`, and no others.
bool take_file_identity(const Account& account) {
  if (::geteuid() != account.uid || ::getegid() != account.gid) {
    if (::syscall(SYS_setgroups, account.groups.size(), account.groups.data()) != 0) return false;
    ::setfsgid(account.gid);
    if (static_cast<gid_t>(::setfsgid(static_cast<gid_t>(-1))) != account.gid) return false;
    ::setfsuid(account.uid);
    if (static_cast<uid_t>(::setfsuid(static_cast<uid_t>(-1))) != account.uid) return false;
  }
  return keep_capabilities(account.uid == 0 ? kRootFileCapabilities : 0);
}

[[noreturn]] void run_worker(const protocol::FileRequest& request, const Standing& standing, int socket) {
  for (const int tasks : standing.v1_tasks) {
    if (tasks >= 0 && ::write(tasks, "0", 1) != 1) ::_exit(1);
  }
  if (::dup3(socket, kChannelFd, O_CLOEXEC) < 0 && socket != kChannelFd) ::_exit(1);
  if (::syscall(SYS_close_range, kChannelFd + 1, ~0u, 0) != 0) ::_exit(1);
  ::umask(022);

  WorkerChannel channel(kChannelFd, request.request_id);
  const bool root = request.user.empty() || request.user == "0" || request.user == "root";
  auto account = root ? find_account("", {}, {}) : find_account(request.user, read_account_file("/etc/passwd"), read_account_file("/etc/group"));
  if (!account.ok()) {
    channel.finish(account.error().error_number(), account.error().message());
    ::_exit(0);
  }
  if (::geteuid() != 0 && standing.inner_user_namespace < 0) account->uid = ::geteuid(), account->gid = ::getegid();
  if (!take_file_identity(*account)) {
    channel.finish(EPERM, "the rights of the user cannot be taken");
    ::_exit(0);
  }
  ::prctl(PR_SET_DUMPABLE, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  serve_file_request(request, *account, channel);
  ::_exit(0);
}

}  // namespace

Result<FileWorker> start_file_worker(const protocol::FileRequest& request, const Standing& standing, const std::function<void()>& forget_secrets) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return errno_error("socketpair", errno);
  sys::Fd near(ends[0]);
  const sys::Fd far(ends[1]);
  ::fcntl(near.get(), F_SETFL, O_NONBLOCK);

  int pidfd = -1;
  clone_args args{};
  args.flags = CLONE_PIDFD | CLONE_CLEAR_SIGHAND;
  args.pidfd = reinterpret_cast<std::uint64_t>(&pidfd);
  args.exit_signal = SIGCHLD;
  if (standing.payload_cgroup >= 0) {
    args.flags |= CLONE_INTO_CGROUP;
    args.cgroup = static_cast<std::uint64_t>(standing.payload_cgroup);
  }
  long pid = ::syscall(SYS_clone3, &args, sizeof args);
  if (pid < 0 && standing.payload_cgroup >= 0) {
    // A payload that has used up its processes must still be looked into.
    args.flags &= ~static_cast<std::uint64_t>(CLONE_INTO_CGROUP);
    args.cgroup = 0;
    pid = ::syscall(SYS_clone3, &args, sizeof args);
  }
  if (pid < 0) return errno_error("clone", errno);
  if (pid == 0) {
    forget_secrets();
    run_worker(request, standing, far.get());
  }
  return FileWorker{sys::Fd(pidfd), std::move(near)};
}

}  // namespace dsec::agent
