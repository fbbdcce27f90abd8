#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "backend/container/instance.h"
#include "sys/file.h"

namespace dsec::backend::container {

namespace {

constexpr std::string_view kPrefix = "op-";

// Of a small file of the kernel's, which gives it whole to one read.
std::uint64_t field(int cgroup, const char* file, std::string_view key) {
  const sys::Fd fd(::openat(cgroup, file, O_RDONLY | O_CLOEXEC));
  char text[4096];
  const ssize_t n = fd ? ::read(fd.get(), text, sizeof text) : -1;
  return n > 0 ? sys::cgroup_field({text, static_cast<std::size_t>(n)}, key) : 0;
}

std::uint64_t since(std::uint64_t now, std::uint64_t before) { return now - std::min(now, before); }

}  // namespace

std::string encode(const OperationRecord& record) {
  if (record.before.cpu_usec == 0 && record.before.frozen_usec == 0) return record.id;
  return record.id + ":" + std::to_string(record.before.cpu_usec) + ":" + std::to_string(record.before.frozen_usec);
}

Result<OperationRecord> decode_operation_record(const std::string& text) {
  OperationRecord record;
  const std::size_t colon = text.find(':');
  record.id = text.substr(0, colon);
  if (colon == std::string::npos) return record;
  const char* const end = text.data() + text.size();
  const auto cpu = std::from_chars(text.data() + colon + 1, end, record.before.cpu_usec);
  if (cpu.ec == std::errc() && cpu.ptr != end && *cpu.ptr == ':') {
    const auto frozen = std::from_chars(cpu.ptr + 1, end, record.before.frozen_usec);
    if (frozen.ec == std::errc() && frozen.ptr == end) return record;
  }
  return Error(ErrorCode::kDataFault, "not the record of an operation: " + text.substr(0, 128));
}

ContainerOperation::Before ContainerOperation::counted(int cgroup, bool ever_frozen) {
  return {.cpu_usec = field(cgroup, "cpu.stat", "usage_usec"),
          .frozen_usec = ever_frozen ? field(cgroup, "cgroup.stat.local", "frozen_usec") : 0};
}

ContainerOperation::~ContainerOperation() {
  if (cgroup_ && !scope_->given_back.load()) (void)::unlinkat(payload_.get(), name_.c_str(), AT_REMOVEDIR);
}

Result<void> ContainerOperation::kill() {
  const std::scoped_lock lock(mutex_, scope_->mutex);
  if (!cgroup_ || scope_->given_back.load()) return {};  // its last process had ended
  killed_ = true;
  auto killed = sys::CgroupTree::kill_operation(cgroup_.get());
  // The directory is gone with its last process.
  if (!killed.ok() && (killed.error().error_number() == ENOENT || killed.error().error_number() == ENODEV)) return {};
  return killed;
}

bool ContainerOperation::counts() const { return cgroup_ && !scope_->given_back.load(); }

bool ContainerOperation::populated() const { return counts() && field(cgroup_.get(), "cgroup.events", "populated") != 0; }

std::uint64_t ContainerOperation::cpu_usec() const {
  return counts() ? since(field(cgroup_.get(), "cpu.stat", "usage_usec"), before_.cpu_usec) : 0;
}

std::uint64_t ContainerOperation::frozen_usec() const {
  if (!counts() || !scope_->ever_frozen.load()) return 0;
  return since(field(cgroup_.get(), "cgroup.stat.local", "frozen_usec"), before_.frozen_usec);
}

std::string ContainerOperation::record() const { return encode({.id = name_.substr(kPrefix.size()), .before = before_}); }

std::unique_ptr<Operation> ContainerOperation::renew() {
  const std::lock_guard lock(mutex_);
  if (killed_ || !counts() || populated()) return nullptr;
  Before before = counted(cgroup_.get(), scope_->ever_frozen.load());
  if (!scope_->ever_frozen.load()) before.frozen_usec = before_.frozen_usec;  // by whoever had the slot earlier
  return std::make_unique<ContainerOperation>(std::move(payload_), name_, std::move(cgroup_), before, Past::kKnown, scope_);
}

}  // namespace dsec::backend::container
