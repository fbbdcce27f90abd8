// What every Backend keeps to. An adapter's file instantiates this suite with a
// fixture that makes it and a root file system to launch; a fixture that cannot
// work on this host gives a reason, and the suite skips with it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <functional>
#include <memory>
#include <string>

#include "agent_probe.h"
#include "backend/backend.h"

namespace dsec::contract {

// One adapter, ready to launch. The destructor leaves nothing behind.
class BackendFixture {
 public:
  virtual ~BackendFixture() = default;
  virtual std::string unavailable() const = 0;  // "" = it works here
  virtual backend::Backend& backend() = 0;
  virtual backend::Rootfs rootfs() = 0;  // descriptors stay the fixture's
  virtual bool operations_have_cgroups() const = 0;
};

struct BackendCase {
  std::string name;
  std::function<std::unique_ptr<BackendFixture>()> make;
};

class BackendContract : public ::testing::TestWithParam<BackendCase> {
 protected:
  void SetUp() override {
    fixture_ = GetParam().make();
    if (!fixture_->unavailable().empty()) GTEST_SKIP() << fixture_->unavailable();
  }
  static Deadline soon() { return Deadline::in(std::chrono::seconds(10)); }
  std::unique_ptr<backend::Instance> launch(const std::string& greeting = "") {
    backend::LaunchSpec spec;
    spec.id = "contract";
    spec.greeting = greeting;
    spec.hostname = "contract";
    spec.resources.memory_mb = 64;
    auto instance = fixture_->backend().launch(spec, fixture_->rootfs(), soon());
    EXPECT_TRUE(instance.ok()) << instance.error().message();
    return instance.ok() ? std::move(*instance) : nullptr;
  }
  static bool over(backend::Instance& instance, Duration within = {}) {
    pollfd ready{.fd = instance.pidfd(), .events = POLLIN, .revents = 0};
    return ::poll(&ready, 1, Deadline::in(within).left_ms()) == 1;
  }

  std::unique_ptr<BackendFixture> fixture_;
};

}  // namespace dsec::contract
