#include "image/child_program.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace dsec::image {

namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

}  // namespace

Result<void> run_program(const std::vector<std::string>& argv, const std::vector<std::string>& environment, const ProgramOutput& printed) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (printed.output.empty()) {
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, printed.output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  }
  if (!printed.errors.empty()) {
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, printed.errors.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  }
  posix_spawn_file_actions_addclose(&actions, STDIN_FILENO);
  pid_t child = -1;
  const int failed = ::posix_spawn(&child, argv.at(0).c_str(), &actions, nullptr, pointers(argv).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed == ENOENT) return Error(ErrorCode::kUnsupported, argv[0] + " is not installed on this node");
  if (failed != 0) return errno_error("run " + argv[0], failed);
  for (;;) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, 0);
    if (ended < 0 && errno == EINTR) continue;
    if (ended < 0) return errno_error("wait for " + argv[0], errno);
    if (ended != child) continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
    return Error(ErrorCode::kInternal, argv[0] + (WIFEXITED(status) ? " failed with exit code " + std::to_string(WEXITSTATUS(status))
                                                                    : " was killed by signal " + std::to_string(WTERMSIG(status))));
  }
}

}  // namespace dsec::image
