#include "origin/usrbio_ring.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "origin/open_file.h"

namespace dsec::origin {

namespace {

constexpr auto kGlance = std::chrono::milliseconds(100);  // how long the end waits for the thread that takes answers
constexpr auto kRingFull = std::chrono::milliseconds(1);  // nobody tells when there is room again
constexpr int kAnswers = 16;
constexpr int kAnyNuma = -1;

std::timespec wall_time_in(std::chrono::milliseconds from_now) {
  const auto at = std::chrono::system_clock::now().time_since_epoch() + from_now;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at);
  return {.tv_sec = seconds.count(), .tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(at - seconds).count()};
}

}  // namespace

Result<std::unique_ptr<UsrbioRing>> UsrbioRing::create(std::shared_ptr<const UsrbioLibrary> library, const std::string& path, Options options) {
  std::unique_ptr<UsrbioRing> made(new UsrbioRing(std::move(library), options));
  DSEC_TRY(made->set_up(path));
  return made;
}

Result<void> UsrbioRing::set_up(const std::string& path) {
  char mount_point[sizeof memory_.mount_point] = {};
  const int length = library_->extract_mount_point(mount_point, sizeof mount_point, path.c_str());
  if (length <= 0 || length > static_cast<int>(sizeof mount_point)) return Error(ErrorCode::kUnavailable, "USRBIO: " + path + " is on no mount of 3FS");
  if (const int failed = library_->iovcreate(&memory_, mount_point, options_.slots * options_.slot_bytes, 0, kAnyNuma); failed != 0)
    return store_error("USRBIO: make shared memory", -failed);
  has_memory_ = true;
  const int entries = static_cast<int>(options_.slots);
  if (const int failed = library_->iorcreate4(&queue_, mount_point, entries, true, 0, 0, kAnyNuma, UsrbioLibrary::kForbidHoles); failed != 0)
    return store_error("USRBIO: make a ring", -failed);
  has_queue_ = true;
  answers_ = std::thread([this] { take_answers(); });
  return {};
}

UsrbioRing::~UsrbioRing() {
  stopping_ = true;
  if (answers_.joinable()) answers_.join();
  if (has_queue_) library_->iordestroy(&queue_);
  if (has_memory_) library_->iovdestroy(&memory_);
}

Result<void> UsrbioRing::add(int fd) const {
  if (const int failed = library_->reg_fd(fd, 0); failed > 0) return store_error("USRBIO: register a file", failed);
  return {};
}

Result<Buffer> UsrbioRing::read(int fd, std::uint64_t offset, std::size_t length, Deadline deadline) {
  Buffer out(length);
  for (std::size_t done = 0; done < length;) {
    DSEC_ASSIGN(const std::size_t got, read_part(fd, offset + done, out.data() + done, std::min(length - done, options_.slot_bytes), deadline));
    done += got;
  }
  return out;
}

Result<std::size_t> UsrbioRing::read_part(int fd, std::uint64_t offset, char* out, std::size_t length, Deadline deadline) {
  DSEC_ASSIGN(const std::size_t slot, take_slot(deadline));
  DSEC_TRY(ask(slot, fd, offset, length, deadline));
  DSEC_ASSIGN(const std::int64_t result, answer(slot, deadline));
  const bool sound = result > 0 && static_cast<std::uint64_t>(result) <= length;
  if (sound) std::memcpy(out, memory_of(slot), static_cast<std::size_t>(result));
  free_slot(slot);
  if (sound) return static_cast<std::size_t>(result);
  if (result < 0) return store_error("read by USRBIO", static_cast<int>(-result));
  return Error(ErrorCode::kDataFault, result == 0 ? "the file is shorter than its size" : "USRBIO answers with more than was asked for");
}

Result<std::size_t> UsrbioRing::take_slot(Deadline deadline) {
  const auto free = [this] { return std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.state == State::kFree; }); };
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline.when(), [&] { return free() != slots_.end(); })) return Error(ErrorCode::kExhausted, "too many reads wait for USRBIO");
  const auto found = free();
  found->state = State::kUnderWay;
  return static_cast<std::size_t>(found - slots_.begin());
}

void UsrbioRing::free_slot(std::size_t slot) {
  {
    const std::lock_guard lock(mutex_);
    slots_[slot].state = State::kFree;
  }
  changed_.notify_all();
}

Result<void> UsrbioRing::ask(std::size_t slot, int fd, std::uint64_t offset, std::size_t length, Deadline deadline) {
  const auto* const userdata = reinterpret_cast<const void*>(slot + 1);
  while (true) {
    int put = 0;
    {
      const std::lock_guard lock(ask_mutex_);
      put = library_->prep_io(&queue_, &memory_, true, memory_of(slot), fd, offset, length, userdata);
      // A hint: what was put in may run before, and may be asked for again by the next one.
      if (put >= 0) (void)library_->submit_ios(&queue_);
    }
    if (put >= 0) return {};
    if (put != -EAGAIN || deadline.passed()) {
      free_slot(slot);
      if (put == -EAGAIN) return Error(ErrorCode::kDeadlineExceeded, "the ring of USRBIO stays full");
      return store_error("ask USRBIO", -put);
    }
    std::this_thread::sleep_for(kRingFull);
  }
}

Result<std::int64_t> UsrbioRing::answer(std::size_t slot, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_until(lock, deadline.when(), [&] { return slots_[slot].state == State::kDone; })) return slots_[slot].result;
  slots_[slot].state = State::kGivenUp;
  return Error(ErrorCode::kDeadlineExceeded, "USRBIO does not answer");
}

void UsrbioRing::take_answers() {
  UsrbioDone done[kAnswers];
  while (!stopping_) {
    const std::timespec until = wall_time_in(kGlance);
    const int count = library_->wait_for_ios(&queue_, done, kAnswers, 1, &until);
    for (int i = 0; i < std::min(count, kAnswers); ++i) settle(done[i]);
    // Else it would be asked without end.
    if (count < 0 && count != -ETIMEDOUT && count != -EINTR) std::this_thread::sleep_for(kGlance);
  }
}

void UsrbioRing::settle(const UsrbioDone& done) {
  const std::size_t slot = reinterpret_cast<std::uintptr_t>(done.userdata) - 1;
  {
    const std::lock_guard lock(mutex_);
    if (slot >= slots_.size()) return;
    Slot& found = slots_[slot];
    if (found.state == State::kGivenUp) found.state = State::kFree;
    if (found.state != State::kUnderWay) return changed_.notify_all();
    found.state = State::kDone;
    found.result = done.result;
  }
  changed_.notify_all();
}

}  // namespace dsec::origin
