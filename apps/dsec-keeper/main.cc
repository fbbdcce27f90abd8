// dsec-keeper: started by `dsec serve`, outlives it.
//
//   dsec-keeper --data-dir DIR --helper-dir DIR [--detach] [--no-v1] [--ready N] [--linger-ms N]
//
// With --detach it returns 0 once the keeper listens in a session of its own (or
// one does already), 1 when it cannot.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/log.h"
#include "keeper/keeper.h"
#include "sys/file.h"

namespace {

// Standard streams of whoever started us are not to be held open.
void detach_streams(const std::string& data_dir) {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) ::_exit(1);
  const int log = ::open((data_dir + "/run/keeper.log").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  ::dup2(null, 0);
  ::dup2(null, 1);
  ::dup2(log >= 0 ? log : null, 2);
  ::close(null);
  if (log >= 0) ::close(log);
  if (::chdir("/") < 0) ::_exit(1);
}

// The child's side returns; the parent's exits with what the child reported.
int fork_and_report() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) return -1;
  const pid_t pid = ::fork();
  if (pid < 0) return -1;
  if (pid > 0) {
    ::close(ends[1]);
    char byte = 0;
    ssize_t n;
    do n = ::read(ends[0], &byte, 1);
    while (n < 0 && errno == EINTR);
    ::_exit(n == 1 ? 0 : 1);
  }
  ::close(ends[0]);
  ::setsid();
  return ends[1];
}

}  // namespace

int main(int argc, char** argv) {
  dsec::keeper::KeeperOptions options;
  bool detach = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--detach") detach = true;
    else if (flag == "--no-v1") options.use_v1 = false;
    else if (flag == "--data-dir") options.data_dir = value, ++i;
    else if (flag == "--helper-dir") options.helper_dir = value, ++i;
    else if (flag == "--ready") options.ready_slots = value, ++i;
    else if (flag == "--linger-ms") options.linger = std::chrono::milliseconds(std::atol(value)), ++i;
    else return std::fprintf(stderr, "dsec-keeper: unknown argument %s\n", argv[i]), 2;
  }
  if (options.data_dir.empty() || options.data_dir[0] != '/' || options.helper_dir.empty())
    return std::fprintf(stderr, "usage: dsec-keeper --data-dir /DIR --helper-dir DIR [--detach] [--no-v1] [--ready N] [--linger-ms N]\n"), 2;
  int ready = -1;
  if (detach) {
    if (!dsec::sys::make_directories(options.data_dir + "/run", 0700).ok()) return 1;
    ready = fork_and_report();
    if (ready < 0) return 1;
    detach_streams(options.data_dir);
  }
  dsec::set_up_log("dsec-keeper", dsec::LogLevel::kInfo, dsec::LogFormat::kText);
  const auto kept = dsec::keeper::keep(options, ready);
  if (!kept.ok()) return dsec::log_error("keeper ended", {{"error", kept.error().message()}}), 1;
  return 0;
}
