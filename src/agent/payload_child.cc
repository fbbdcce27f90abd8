#include "agent/payload_child.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "agent/raw_syscall.h"
#include "base/error.h"
#include "protocol/payload_privileges.h"

namespace dsec::agent {
namespace {

constexpr std::size_t kStackBytes = 16 << 10;

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

}  // namespace

const char* stage_name(BirthStage stage) {
  switch (stage) {
    case BirthStage::kNone: return "start";
    case BirthStage::kClone: return "clone";
    case BirthStage::kCgroup: return "cgroup";
    case BirthStage::kUserNamespace: return "namespace";
    case BirthStage::kPrivileges: return "privileges";
    case BirthStage::kUser: return "user";
    case BirthStage::kTerminal: return "terminal";
    case BirthStage::kDescriptors: return "descriptors";
    case BirthStage::kCwd: return "cwd";
    case BirthStage::kExec: return "exec";
  }
  return "start";
}

PayloadPlan::PayloadPlan(Description description, Descriptors descriptors)
    : description_(std::move(description)),
      descriptors_(std::move(descriptors)),
      env_(pointers(description_.env)),
      stack_(std::make_unique_for_overwrite<char[]>(kStackBytes)) {
  static char shell[] = "/bin/sh";
  std::size_t files = 0;
  for (const Program& program : description_.programs) files += program.files.size();
  vectors_.reserve(description_.programs.size() + files);
  for (const Program& program : description_.programs) {
    DSEC_CHECK(!program.argv.empty());
    const std::size_t own = vectors_.size();
    vectors_.push_back(pointers(program.argv));
    for (const std::string& file : program.files) {
      std::vector<char*> script = {shell, const_cast<char*>(file.c_str())};
      script.insert(script.end(), vectors_[own].begin() + 1, vectors_[own].end());
      vectors_.push_back(std::move(script));
      candidates_.push_back({file.c_str(), vectors_[own].data(), vectors_.back().data()});
    }
  }
}

bool PayloadPlan::prepare() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return !fail(BirthStage::kDescriptors, -errno);
  birth_ = sys::Fd(ends[0]);
  birth_held_ = sys::Fd(ends[1]);
  // A number that the child needs for something else would be closed with it.
  while (birth_held_.get() == descriptors_.state_in_number || birth_held_.get() == descriptors_.state_out_number) {
    birth_held_ = sys::Fd(::fcntl(birth_held_.get(), F_DUPFD_CLOEXEC, birth_held_.get() + 1));
    if (!birth_held_) return !fail(BirthStage::kDescriptors, -errno);
  }
  birth_number_ = birth_held_.get();
  return true;
}

bool PayloadPlan::start() {
  int pidfd = -1;
  clone_args args{};
  args.flags = CLONE_VM | CLONE_PIDFD | CLONE_CLEAR_SIGHAND;
  args.pidfd = reinterpret_cast<std::uint64_t>(&pidfd);
  args.exit_signal = SIGCHLD;
  args.stack = reinterpret_cast<std::uint64_t>(stack_.get());
  args.stack_size = kStackBytes;
  const int cgroup = descriptors_.cgroup.valid() ? descriptors_.cgroup.get() : description_.standing.payload_cgroup;
  if (cgroup >= 0) {
    args.flags |= CLONE_INTO_CGROUP;
    args.cgroup = static_cast<std::uint64_t>(cgroup);
  }

  const long result = clone_with_stack(&args, &PayloadPlan::run_child, this);
  birth_held_.reset();
  if (fail(BirthStage::kClone, result)) return false;
  pid_ = static_cast<pid_t>(result);
  pidfd_ = sys::Fd(pidfd);
  return true;
}

bool PayloadPlan::ran() {
  if (error_ != 0) return false;
  // A child that was killed on its way has set no error and runs no program.
  if (stage() == BirthStage::kExec) return true;
  error_ = EINTR;
  return false;
}

int PayloadPlan::run_child(void* plan) { return static_cast<PayloadPlan*>(plan)->child(); }

bool PayloadPlan::fail(BirthStage stage, long result) {
  if (result >= 0) return false;
  stage_ = static_cast<std::uint8_t>(stage);
  error_ = static_cast<int>(-result);
  return true;
}

int PayloadPlan::child() {
  if (!enter() || !set_up_descriptors() || !take_identity() || !change_directory()) return 127;
  stage_ = static_cast<std::uint8_t>(BirthStage::kExec);
  execute();
  return 127;
}

// Cgroups before the user namespace: the files are the outer one's.
bool PayloadPlan::enter() {
  for (const int tasks : description_.standing.v1_tasks) {
    if (tasks >= 0 && fail(BirthStage::kCgroup, raw(SYS_write, tasks, "0", 1))) return false;
  }
  const int inner = description_.standing.inner_user_namespace;
  return inner < 0 || !fail(BirthStage::kUserNamespace, raw(SYS_setns, inner, CLONE_NEWUSER));
}

bool PayloadPlan::set_up_descriptors() {
  raw(SYS_setsid);
  const int standard[3] = {descriptors_.in.get(), descriptors_.out.get(), descriptors_.err.get()};
  for (int number = 0; number < 3; ++number) {
    if (fail(BirthStage::kDescriptors, raw(SYS_dup3, standard[number], number, 0))) return false;
  }
  if (description_.controlling_terminal && fail(BirthStage::kTerminal, raw(SYS_ioctl, 0, TIOCSCTTY, 0))) return false;

  const int state_in = descriptors_.state_in.get();
  const int state_out = descriptors_.state_out.get();
  if (state_in >= 0 && fail(BirthStage::kDescriptors, raw(SYS_dup3, state_in, descriptors_.state_in_number, 0))) return false;
  if (state_out >= 0 && fail(BirthStage::kDescriptors, raw(SYS_dup3, state_out, descriptors_.state_out_number, 0))) return false;
  // In ascending order, so that the gaps between them can be closed.
  int kept[3] = {birth_number_, state_in >= 0 ? descriptors_.state_in_number : -1, state_out >= 0 ? descriptors_.state_out_number : -1};
  if (kept[0] > kept[1]) std::swap(kept[0], kept[1]);
  if (kept[1] > kept[2]) std::swap(kept[1], kept[2]);
  if (kept[0] > kept[1]) std::swap(kept[0], kept[1]);
  int first = 3;
  for (const int number : kept) {
    if (number < first) continue;
    if (number > first) raw(SYS_close_range, first, number - 1, 0);
    first = number + 1;
  }
  if (fail(BirthStage::kDescriptors, raw(SYS_close_range, first, ~0u, 0))) return false;
  raw(SYS_prlimit64, 0, RLIMIT_NOFILE, &description_.open_files, nullptr);
  return true;
}

bool PayloadPlan::take_identity() {
  const bool contained = description_.standing.inner_user_namespace >= 0;
  if (contained) {
    constexpr std::uint64_t kKept = protocol::payload_capability_mask();
    for (int capability = 0; capability <= protocol::kLastCapabilityTried; ++capability) {
      if ((kKept >> capability & 1) != 0) continue;
      const long dropped = raw(SYS_prctl, PR_CAPBSET_DROP, capability, 0, 0, 0);
      if (dropped == -EINVAL) break;  // past the kernel's last
      if (fail(BirthStage::kPrivileges, dropped)) return false;
    }
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    __user_cap_data_struct data[2]{};
    for (int half = 0; half < 2; ++half) {
      data[half].effective = data[half].permitted = static_cast<std::uint32_t>(kKept >> (32 * half));
    }
    if (fail(BirthStage::kPrivileges, raw(SYS_capset, &header, &data[0]))) return false;
  }
  raw(SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);

  // An ordinary user who runs --plain has no right to set groups, nor a need.
  const long groups = raw(SYS_setgroups, description_.groups.size(), description_.groups.data());
  if (!(groups == -EPERM && !contained) && fail(BirthStage::kUser, groups)) return false;
  if (fail(BirthStage::kUser, raw(SYS_setresgid, description_.gid, description_.gid, description_.gid))) return false;
  if (fail(BirthStage::kUser, raw(SYS_setresuid, description_.uid, description_.uid, description_.uid))) return false;

  if (description_.no_new_privs && fail(BirthStage::kPrivileges, raw(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))) return false;
  raw(SYS_umask, 022);
  return true;
}

bool PayloadPlan::change_directory() {
  char* const path = description_.cwd.data();
  std::size_t end = description_.cwd.size();
  long result = raw(SYS_chdir, path);
  // A session whose directory was removed goes on in the nearest one left.
  while (result < 0 && description_.nearest_cwd && end > 1) {
    --end;
    while (end > 0 && path[end] != '/') --end;
    path[end == 0 ? 1 : end] = '\0';
    result = raw(SYS_chdir, path);
  }
  return !fail(BirthStage::kCwd, result);
}

void PayloadPlan::execute() {
  const std::uint64_t none = 0;
  raw(SYS_rt_sigprocmask, SIG_SETMASK, &none, nullptr, sizeof none);

  int error = ENOENT;
  for (const Candidate& candidate : candidates_) {
    long result = raw(SYS_execve, candidate.file, candidate.argv, env_.data());
    if (result == -ENOEXEC) result = raw(SYS_execve, candidate.script_argv[0], candidate.script_argv, env_.data());
    // What is there but may not run says more than what is not there.
    if (result != -ENOENT && result != -ENOTDIR) error = static_cast<int>(-result);
  }
  error_ = error;
}

}  // namespace dsec::agent
