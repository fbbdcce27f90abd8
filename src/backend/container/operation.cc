#include <fcntl.h>
#include <unistd.h>

#include "backend/container/instance.h"
#include "sys/file.h"

namespace dsec::backend::container {

namespace {

std::uint64_t field(int cgroup, const char* file, std::string_view key) {
  const auto text = sys::read_file_at(cgroup, file, 4096);
  return text.ok() ? sys::cgroup_field(*text, key) : 0;
}

}  // namespace

ContainerOperation::~ContainerOperation() {
  if (!over_->load()) (void)::unlinkat(payload_.get(), name_.c_str(), AT_REMOVEDIR);
}

Result<void> ContainerOperation::kill() {
  const auto killed = sys::write_at(cgroup_.get(), "cgroup.kill", "1");
  // The directory is gone with its last process.
  if (!killed.ok() && (killed.error().error_number() == ENOENT || killed.error().error_number() == ENODEV)) return {};
  return killed;
}

bool ContainerOperation::populated() const { return field(cgroup_.get(), "cgroup.events", "populated") != 0; }

std::uint64_t ContainerOperation::cpu_usec() const { return field(cgroup_.get(), "cpu.stat", "usage_usec"); }

std::uint64_t ContainerOperation::frozen_usec() const { return field(cgroup_.get(), "cgroup.stat.local", "frozen_usec"); }

}  // namespace dsec::backend::container
