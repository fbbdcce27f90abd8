// dsec-keeper --run-dir DIR [--foreground]
//
// Without --foreground it goes to the background and returns 0 when the socket
// takes requests, or when another keeper already does.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "keeper/keeper.h"

namespace {

// Detached from terminal, session and parent. The caller's process returns once
// the child has written its verdict.
void detach(int verdict) {
  if (::setsid() < 0) ::_exit(1);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd < 3; fd++) ::dup2(null, fd);
  for (int fd = 3; fd < 1024; fd++)
    if (fd != verdict) ::close(fd);
  if (::chdir("/") != 0) ::_exit(1);
}

int serve(const char* directory, int verdict) {
  auto keeper = dsec::keeper::Keeper::open(directory);
  const bool lives = keeper.ok() || keeper.error().code() == dsec::ErrorCode::kConflict;
  if (verdict >= 0) {
    const char byte = lives ? 'y' : 'n';
    if (::write(verdict, &byte, 1) != 1) return 1;
    ::close(verdict);
  } else if (!keeper.ok()) {
    std::fprintf(stderr, "dsec-keeper: %s\n", keeper.error().message().c_str());
  }
  if (!keeper.ok()) return lives ? 0 : 1;
  return (*keeper)->run().ok() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const char* directory = nullptr;
  bool foreground = false;
  for (int i = 1; i < argc; i++) {
    if (std::strcmp(argv[i], "--run-dir") == 0 && i + 1 < argc) {
      directory = argv[++i];
    } else if (std::strcmp(argv[i], "--foreground") == 0) {
      foreground = true;
    } else {
      directory = nullptr;
      break;
    }
  }
  if (directory == nullptr) {
    std::fprintf(stderr, "usage: dsec-keeper --run-dir DIR [--foreground]\n");
    return 2;
  }
  if (foreground) return serve(directory, -1);

  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) return 1;
  const pid_t pid = ::fork();
  if (pid < 0) return 1;
  if (pid == 0) {
    ::close(pipe_fds[0]);
    // Lifted above what detach() closes below.
    const int verdict = ::fcntl(pipe_fds[1], F_DUPFD_CLOEXEC, 100);
    detach(verdict);
    return serve(directory, verdict);
  }
  ::close(pipe_fds[1]);
  char verdict = 'n';
  return ::read(pipe_fds[0], &verdict, 1) == 1 && verdict == 'y' ? 0 : 1;
}
