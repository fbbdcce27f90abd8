// The path of a payload process from its birth to execve.
//
// The child shares memory with aether (CLONE_VM | CLONE_VFORK): it costs no page
// tables, and the payload's out-of-memory killer has no memory to gain from it.
// It therefore makes raw system calls only, allocates nothing, and touches
// nothing but its plan. All thinking is done before, by PayloadPlan.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sys/fd.h"

namespace dsec::agent {

enum class BirthStage : std::uint8_t {
  kNone, kClone, kCgroup, kUserNamespace, kPrivileges, kUser, kTerminal, kDescriptors, kCwd, kExec,
};
const char* stage_name(BirthStage stage);

// One way to run the command: candidate files are tried in order, as execvp does.
struct Program {
  std::vector<std::string> files;
  std::vector<std::string> argv;  // at least one
};

// Where the descriptors of the container are; -1 where there is none (--plain).
struct Standing {
  int inner_user_namespace = -1;
  int payload_cgroup = -1;
  int v1_tasks[3] = {-1, -1, -1};
};

class PayloadPlan {
 public:
  struct Description {
    std::vector<Program> programs;  // the first that can be executed is
    std::vector<std::string> env;
    std::string cwd;
    bool nearest_cwd = false;  // a parent of cwd will do
    uid_t uid = 0;
    gid_t gid = 0;
    std::vector<gid_t> groups;
    bool no_new_privs = false;
    bool controlling_terminal = false;  // standard input is a terminal's slave
    rlimit open_files{};
    Standing standing;
  };
  struct Descriptors {
    sys::Fd in, out, err;  // none below 3
    // Kept open in the child under these numbers, when valid (sessions);
    // state_in_number < state_out_number.
    sys::Fd state_in, state_out;
    int state_in_number = -1;
    int state_out_number = -1;
    sys::Fd cgroup;  // the operation's v2 directory
  };

  PayloadPlan(Description description, Descriptors descriptors);

  // Makes the child and returns when it has executed the program or ended. True
  // when the program runs. The calling thread waits meanwhile.
  bool launch();

  // Written by the kernel before the child runs its first instruction; may be
  // read by another thread while launch() runs. 0: there was no child.
  pid_t pid() const { return pid_.load(std::memory_order_acquire); }
  sys::Fd take_pidfd() { return std::move(pidfd_); }
  BirthStage stage() const { return static_cast<BirthStage>(stage_); }
  int error_number() const { return error_; }

 private:
  struct Candidate {
    const char* file;
    char* const* argv;         // of the program
    char* const* script_argv;  // /bin/sh, file, arguments: for a file without a known format
  };
  static int run_child(void* plan);
  int child();
  bool fail(BirthStage stage, long result);
  bool enter();
  bool take_identity();
  bool set_up_descriptors();
  bool change_directory();
  void execute();

  Description description_;
  Descriptors descriptors_;
  std::vector<std::vector<char*>> vectors_;
  std::vector<char*> env_;
  std::vector<Candidate> candidates_;
  std::unique_ptr<char[]> stack_;

  std::atomic<pid_t> pid_{0};
  sys::Fd pidfd_;
  volatile std::uint8_t stage_ = 0;
  volatile int error_ = 0;
};

}  // namespace dsec::agent
