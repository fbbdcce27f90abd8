#include "root/support/engine.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "protocol/agent_messages.h"
#include "protocol/frame.h"
#include "sys/file.h"
#include "sys/mounts.h"

namespace dsec::testing {

namespace fs = std::filesystem;

std::string program_dir() { return fs::read_symlink("/proc/self/exe").parent_path().string(); }

ScratchDirectory::ScratchDirectory() {
  char name[] = "/tmp/dsec-engine-XXXXXX";
  if (!::mkdtemp(name)) die("mkdtemp");
  path_ = name;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

sys::Fd erofs_of(const std::string& tree) {
  const std::string image = tree + ".erofs";
  const std::string command = "mkfs.erofs --quiet " + image + " " + tree + " >/dev/null 2>&1";
  if (std::system(command.c_str()) != 0) die("mkfs.erofs failed");
  auto context = sys::FilesystemContext::open("erofs");
  context.value().set("source", image).value();
  context.value().set_flag("directio").value();
  sys::Fd mount = context.value().mount(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV).value();
  fs::remove(image);
  return mount;
}

const sys::Fd& tiny_rootfs() {
  static const sys::Fd mount = [] {
    ScratchDirectory scratch;
    const std::string tree = scratch.path() + "/tree";
    for (const char* name : {"bin", "sbin", "etc", "root", "usr/bin", "usr/sbin", "var", "proc", "sys", "dev", "tmp"})
      fs::create_directories(tree + "/" + name);
    fs::permissions(tree + "/tmp", fs::perms::all | fs::perms::sticky_bit);
    fs::copy("/bin/busybox", tree + "/bin/busybox");
    for (const char* name : {"sh", "cat", "ls", "id", "echo", "sleep", "mkdir", "kill", "ps", "touch", "dd", "wc", "head", "nc", "hostname",
                             "mount", "rm", "chown", "stat", "true", "grep", "env", "readlink", "find", "awk", "timeout", "tail"})
      fs::create_symlink("busybox", tree + "/bin/" + name);
    fs::copy(program_dir() + "/engine_attack", tree + "/bin/attack");
    std::ofstream(tree + "/etc/passwd") << "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/tmp:/bin/sh\n";
    std::ofstream(tree + "/etc/hosts") << "image\n";
    return erofs_of(tree);
  }();
  return mount;
}

Engine::Engine(EngineOptions options) : options_(std::move(options)) {
  for (const char* name : {"dsec-keeper", "dsec-spawner", "dsec-stored"}) fs::create_symlink(program_dir() + "/" + name, helpers_.path() + "/" + name);
  fs::create_symlink(options_.agent.empty() ? program_dir() + "/engine_agent" : options_.agent, helpers_.path() + "/dsec-agent");
  if (!options_.fail_point.empty()) ::setenv("DSEC_FAIL_POINT", options_.fail_point.c_str(), 1);
  keeper_ = std::move(backend::start_or_find_keeper({data_dir(), helpers_.path(), options_.use_v1, options_.ready_slots}, soon())).value();
  ::unsetenv("DSEC_FAIL_POINT");
  restart_backend();
}

Engine::~Engine() {
  backend_.reset();
  if (auto stopped = keeper_->stop(soon()); !stopped.ok()) ADD_FAILURE() << stopped.error().message();
  if (::testing::Test::HasFailure())
    if (auto log = sys::read_file(data_dir() + "/run/keeper.log"); log.ok()) std::fputs(log->c_str(), stderr);
}

void Engine::restart_backend() {
  backend_.reset();
  backend_ = std::move(backend::container::ContainerBackend::create({data_dir(), options_.use_v1})).value();
}

backend::LaunchSpec Engine::spec() const {
  backend::LaunchSpec spec;
  spec.id = "test";
  spec.hostname = "box";
  spec.resources = {.cpu_cores = 1, .memory_mb = 256, .disk_mb = 64, .max_processes = 64};
  return spec;
}

backend::Rootfs Engine::rootfs() const {
  backend::Rootfs rootfs;
  rootfs.layers.push_back({"tiny", tiny_rootfs().get()});
  rootfs.upper = {.kind = backend::WritableLayer::Kind::kTmpfs, .directory_fd = -1, .limit_bytes = 64 << 20};
  return rootfs;
}

Result<std::unique_ptr<backend::Instance>> Engine::launch() { return backend_->launch(spec(), rootfs(), soon()); }

Deadline soon() { return Deadline::in(std::chrono::seconds(20)); }

std::string run_inside(backend::Instance& instance, const std::string& command) {
  auto connection = instance.dial_agent(soon());
  if (!connection.ok()) return "dial: " + connection.error().message();
  const std::string line = (command[0] == '@' ? command : "!" + command) + "\n";
  if (!sys::write_all(connection->get(), line).ok()) return "write failed";
  std::string out;
  const Deadline deadline = soon();
  char buffer[4096];
  for (;;) {
    pollfd p{connection->get(), POLLIN, 0};
    if (::poll(&p, 1, deadline.left_ms()) != 1) return out + "\ntimed out";
    const ssize_t n = ::read(connection->get(), buffer, sizeof buffer);
    if (n <= 0) return out;
    out.append(buffer, static_cast<std::size_t>(n));
  }
}

bool says_hello(backend::Instance& instance) {
  auto connection = instance.dial_agent(soon());
  if (!connection.ok()) return false;
  protocol::Hello hello;
  hello.secret = std::string(32, 's');
  hello.epoch = 1;
  if (!sys::write_all(connection->get(), protocol::encode_frame(protocol::MessageType::kHello, protocol::encode(hello))).ok()) return false;
  protocol::FrameReader frames;
  char buffer[4096];
  for (;;) {
    pollfd p{connection->get(), POLLIN, 0};
    if (::poll(&p, 1, soon().left_ms()) != 1) return false;
    const ssize_t n = ::read(connection->get(), buffer, sizeof buffer);
    if (n <= 0) return false;
    frames.feed({buffer, static_cast<std::size_t>(n)});
    if (auto frame = frames.next()) return frame->type == protocol::MessageType::kHelloReply;
  }
}

std::size_t open_descriptors() {
  std::size_t n = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) ++n;
  return n;
}

std::size_t mounts_here() {
  const std::string text = sys::read_file("/proc/self/mountinfo").value();
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace dsec::testing
