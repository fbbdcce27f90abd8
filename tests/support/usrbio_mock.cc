// A library with the twelve calls of 3FS's user-space I/O that we use, over
// pread(2) on any file system. It knows no 3FS; it keeps the promises that its
// header makes and, when told so, breaks what a daemon can break.
#include "support/usrbio_mock.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "origin/usrbio_library.h"

using dsec::origin::UsrbioDone;
using dsec::origin::UsrbioMemory;
using dsec::origin::UsrbioQueue;

extern "C" {
UsrbioMock usrbio_mock;
}

namespace {

struct Request {
  int index = 0;
  int fd = -1;  // ours
  void* at = nullptr;
  std::size_t offset = 0;
  std::size_t length = 0;
  const void* userdata = nullptr;
};

struct Ring {
  explicit Ring(int size) : entries(size), worker([this] { work(); }) {}
  ~Ring() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    wake.notify_all();
    worker.join();
  }

  void work() {
    std::mt19937 random(1);
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait_for(lock, std::chrono::milliseconds(20), [this] { return stopping || (!asked.empty() && !usrbio_mock.hangs); });
      if (stopping) return;
      if (asked.empty() || usrbio_mock.hangs) continue;
      if (usrbio_mock.reorders) std::shuffle(asked.begin(), asked.end(), random);
      const Request request = asked.front();
      asked.pop_front();
      lock.unlock();
      const std::int64_t result = read(request);
      lock.lock();
      answers.push_back({request.index, 0, result, request.userdata});
      wake.notify_all();
    }
  }

  static std::int64_t read(const Request& request) {
    std::this_thread::sleep_for(std::chrono::microseconds(usrbio_mock.delay_us));
    ++usrbio_mock.reads;
    if (usrbio_mock.fails_with != 0) return -usrbio_mock.fails_with;
    std::size_t length = request.length;
    if (usrbio_mock.short_reads && length > 1) length /= 2;
    // Into memory of our own first: the file may be open for direct reads, which want all aligned.
    const std::size_t front = request.offset % 4096;
    const std::size_t room = (front + length + 4095) / 4096 * 4096;
    void* const memory = ::aligned_alloc(4096, room);
    const ssize_t got = ::pread(request.fd, memory, room, static_cast<off_t>(request.offset - front));
    const std::int64_t result = got < 0 ? -errno : std::min<std::int64_t>(static_cast<std::int64_t>(length), std::max<std::int64_t>(0, got - static_cast<std::int64_t>(front)));
    if (result > 0) std::memcpy(request.at, static_cast<char*>(memory) + front, static_cast<std::size_t>(result));
    ::free(memory);
    return usrbio_mock.says_too_much ? static_cast<std::int64_t>(request.length) + 1 : result;
  }

  const int entries;
  std::mutex mutex;
  std::condition_variable wake;
  bool stopping = false;
  int next = 0;
  std::deque<Request> asked;
  std::vector<UsrbioDone> answers;
  std::thread worker;
};

std::mutex files_mutex;
std::map<int, int> files;  // registered descriptors, and ours of them

Ring& ring_of(const UsrbioQueue* queue) { return *static_cast<Ring*>(queue->handle); }

}  // namespace

extern "C" {

bool hf3fs_is_hf3fs(int) { return usrbio_mock.is_3fs; }

int hf3fs_extract_mount_point(char* out, int size, const char* path) {
  const int length = static_cast<int>(std::strlen(path)) + 1;
  if (length <= size) std::memcpy(out, path, static_cast<std::size_t>(length));
  return length;
}

int hf3fs_iovcreate(UsrbioMemory* memory, const char*, std::size_t size, std::size_t, int) {
  void* const base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return -errno;
  memory->base = static_cast<std::uint8_t*>(base);
  memory->size = size;
  return 0;
}

void hf3fs_iovdestroy(UsrbioMemory* memory) { ::munmap(memory->base, memory->size); }

int hf3fs_iorcreate4(UsrbioQueue* queue, const char*, int entries, bool for_read, int, int, int, std::uint64_t flags) {
  if (!for_read || entries <= 0) return -EINVAL;
  usrbio_mock.flags = flags;
  queue->handle = new Ring(entries);
  return 0;
}

void hf3fs_iordestroy(UsrbioQueue* queue) { delete &ring_of(queue); }

int hf3fs_reg_fd(int fd, std::uint64_t) {
  if (usrbio_mock.refuses_files) return EINVAL;
  const std::lock_guard lock(files_mutex);
  if (files.contains(fd)) return EINVAL;  // closed without being taken back
  files[fd] = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  ++usrbio_mock.registered;
  return 0;
}

void hf3fs_dereg_fd(int fd) {
  const std::lock_guard lock(files_mutex);
  const auto found = files.find(fd);
  if (found == files.end()) return;
  ::close(found->second);
  files.erase(found);
  --usrbio_mock.registered;
}

int hf3fs_io_entries(const UsrbioQueue* queue) { return ring_of(queue).entries; }

int hf3fs_prep_io(const UsrbioQueue* queue, const UsrbioMemory* memory, bool read, void* at, int fd, std::size_t offset, std::uint64_t length, const void* userdata) {
  const auto* const from = static_cast<const std::uint8_t*>(at);
  if (!read || from < memory->base || from + length > memory->base + memory->size) return -EINVAL;
  int ours = -1;
  {
    const std::lock_guard lock(files_mutex);
    const auto found = files.find(fd);
    if (found == files.end()) return -EBADF;
    ours = found->second;
  }
  Ring& ring = ring_of(queue);
  const std::lock_guard lock(ring.mutex);
  const int every = usrbio_mock.full_every;
  const int index = ring.next++;
  if (static_cast<int>(ring.asked.size()) >= ring.entries || (every > 0 && index % every == 0)) return -EAGAIN;
  ring.asked.push_back({index, ours, at, offset, length, userdata});
  return index;
}

int hf3fs_submit_ios(const UsrbioQueue* queue) {
  ring_of(queue).wake.notify_all();
  return 0;
}

int hf3fs_wait_for_ios(const UsrbioQueue* queue, UsrbioDone* done, int room, int least, const std::timespec* until) {
  Ring& ring = ring_of(queue);
  const auto when = std::chrono::system_clock::time_point(std::chrono::seconds(until->tv_sec) + std::chrono::nanoseconds(until->tv_nsec));
  std::unique_lock lock(ring.mutex);
  if (!ring.wake.wait_until(lock, when, [&] { return static_cast<int>(ring.answers.size()) >= least; })) return -ETIMEDOUT;
  const int count = std::min<int>(room, static_cast<int>(ring.answers.size()));
  std::copy_n(ring.answers.begin(), count, done);
  ring.answers.erase(ring.answers.begin(), ring.answers.begin() + count);
  return count;
}
}
