// The path of a payload process from its birth to execve.
//
// The child shares memory with aether (CLONE_VM): it costs no page tables, and
// the payload's out-of-memory killer has no memory to gain from it. It therefore
// makes raw system calls only, allocates nothing, and touches nothing but its
// plan. All thinking is done before, by PayloadPlan.
//
// aether does not wait for it (no CLONE_VFORK): the child holds the only write end
// of a pipe that is closed on execve. Its end of file says that the child has left
// the shared memory, by its program or by its end.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

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

  // Both: false when there will be no child; stage() and error_number() say why.
  bool prepare();
  // After prepare(), once.
  bool start();
  // From prepare() on. At its end once the child has executed the program or
  // ended; until then the plan must live.
  int birth_fd() const { return birth_.get(); }
  // After that: the program runs, or has run.
  bool ran();

  // 0: there was no child.
  pid_t pid() const { return pid_; }
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

  pid_t pid_ = 0;
  sys::Fd pidfd_;
  sys::Fd birth_;       // the read end
  sys::Fd birth_held_;  // the write end; after start() the child's alone
  int birth_number_ = -1;
  volatile std::uint8_t stage_ = 0;
  volatile int error_ = 0;
};

}  // namespace dsec::agent
