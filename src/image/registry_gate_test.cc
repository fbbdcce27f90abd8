#include "image/registry_gate.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "sys/file.h"

namespace dsec::image {
namespace {

// A process with a network of its own, that does nothing.
class Inside {
 public:
  Inside() {
    clone_args args{};
    args.flags = CLONE_NEWNET;
    args.exit_signal = SIGCHLD;
    pid_ = static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof args));
    if (pid_ == 0) {
      for (;;) ::pause();
    }
    network_ = sys::open_at(AT_FDCWD, "/proc/" + std::to_string(pid_) + "/ns/net", O_RDONLY).value();
  }
  ~Inside() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  int pid() const { return pid_; }
  // From in there; 0 or an errno.
  int connect_to(const std::string& address, std::uint16_t port, sys::Fd& out) const {
    int failed = 0;
    std::thread([&] {
      if (::setns(network_.get(), CLONE_NEWNET) != 0) {
        failed = errno;
        return;
      }
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_port = htons(port);
      ::inet_pton(AF_INET, address.c_str(), &to.sin_addr);
      out = sys::Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (::connect(out.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) failed = errno;
    }).join();
    return failed;
  }

 private:
  pid_t pid_ = -1;
  sys::Fd network_;
};

class RegistryGateTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root: network namespaces";
  }
  // What is dialled is one end of a pair whose other end the test has.
  RegistryGate::Options options(std::vector<AllowedRegistry> allowed, std::chrono::milliseconds idle = std::chrono::seconds(20)) {
    return {.allowed = std::move(allowed),
            .dial = [this](const AllowedRegistry& host, Deadline) -> Result<sys::Fd> {
              int ends[2];
              if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return errno_error("make a pair", errno);
              dialled_ = host.host + ":" + std::to_string(host.port);
              outside_ = sys::Fd(ends[1]);
              ready_ = true;
              ready_.notify_all();
              return sys::Fd(ends[0]);
            },
            .idle_limit = idle};
  }
  static std::string received(int fd, std::size_t bytes) {
    std::string out(bytes, '\0');
    std::size_t got = 0;
    while (got < bytes) {
      const ssize_t n = ::recv(fd, out.data() + got, bytes - got, 0);
      if (n <= 0) break;
      got += static_cast<std::size_t>(n);
    }
    out.resize(got);
    return out;
  }

  std::string dialled_;
  sys::Fd outside_;
  std::atomic<bool> ready_{false};
};

TEST_F(RegistryGateTest, PassesBytesBothWaysAndTheEnd) {
  const Inside inside;
  RegistryGate gate(options({{"registry.example", 443, false}, {"127.0.0.1", 5000, true}}));
  ASSERT_TRUE(gate.open(inside.pid()).ok());
  EXPECT_EQ(gate.hosts(), "127.1.0.2 registry.example\n");

  sys::Fd client;
  ASSERT_EQ(inside.connect_to("127.1.0.2", 443, client), 0);
  ready_.wait(false);
  EXPECT_EQ(dialled_, "registry.example:443");
  const std::string large(3'000'000, 'x');
  std::thread sender([&] { EXPECT_TRUE(sys::write_all(outside_.get(), large).ok()); ::shutdown(outside_.get(), SHUT_WR); });
  EXPECT_TRUE(sys::write_all(client.get(), "hello").ok());

  EXPECT_EQ(received(client.get(), large.size() + 1), large) << "then the end";
  EXPECT_EQ(received(outside_.get(), 5), "hello");
  EXPECT_EQ(gate.received_bytes(), large.size());
  sender.join();
}

TEST_F(RegistryGateTest, LeadsNowhereElse) {
  const Inside inside;
  RegistryGate gate(options({{"registry.example", 443, false}}));
  ASSERT_TRUE(gate.open(inside.pid()).ok());

  sys::Fd client;
  EXPECT_EQ(inside.connect_to("127.1.0.2", 80, client), ECONNREFUSED);
  EXPECT_EQ(inside.connect_to("127.0.0.1", 443, client), ECONNREFUSED);
  EXPECT_EQ(inside.connect_to("192.0.2.1", 443, client), ENETUNREACH);
}

TEST_F(RegistryGateTest, CutsAConnectionOnWhichNothingMoves) {
  const Inside inside;
  RegistryGate gate(options({{"registry.example", 443, false}}, std::chrono::milliseconds(50)));
  ASSERT_TRUE(gate.open(inside.pid()).ok());
  sys::Fd client;
  ASSERT_EQ(inside.connect_to("127.1.0.2", 443, client), 0);

  EXPECT_EQ(received(client.get(), 1), "");
}

TEST_F(RegistryGateTest, EndsWithItsConnections) {
  const Inside inside;
  sys::Fd client;
  {
    RegistryGate gate(options({{"registry.example", 443, false}}));
    ASSERT_TRUE(gate.open(inside.pid()).ok());
    ASSERT_EQ(inside.connect_to("127.1.0.2", 443, client), 0);
    ready_.wait(false);
  }

  EXPECT_EQ(received(client.get(), 1), "");
}

}  // namespace
}  // namespace dsec::image
