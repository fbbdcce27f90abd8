#include "edge/wal.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/crc32c.h"
#include "base/fail_point.h"
#include "sys/file.h"

namespace dsec::edge {
namespace {

constexpr std::string_view kMagic = "DSECWAL\n";
constexpr std::size_t kSegmentHeader = 32;
constexpr std::size_t kRecordHeader = 20;
constexpr std::uint32_t kMaxBody = 32 << 20;
constexpr std::uint32_t kBaseFlag = 1;
constexpr std::uint64_t kCompactionFloor = 32 << 20;

template <typename T>
void put(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
T get(std::string_view bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::string segment_name(std::uint64_t sequence) { return fmt::format("{:016}.log", sequence); }

std::string encode_segment_header(std::uint64_t sequence, std::uint32_t flags) {
  std::string out(kMagic);
  put<std::uint32_t>(out, kWalFormat);
  put<std::uint32_t>(out, flags);
  put<std::uint64_t>(out, sequence);
  put<std::uint32_t>(out, crc32c(out));
  put<std::uint32_t>(out, 0);
  return out;
}

struct RecordView {
  std::uint8_t type = 0;
  std::string_view body;
  std::uint64_t stable_bytes = 0;
  std::size_t end = 0;
};

std::optional<RecordView> record_at(std::string_view bytes, std::size_t at) {
  if (bytes.size() - at < kRecordHeader) return std::nullopt;
  const auto length = get<std::uint32_t>(bytes, at);
  const auto type = get<std::uint8_t>(bytes, at + 8);
  if (type == 0 || bytes[at + 9] != 0 || bytes[at + 10] != 0 || bytes[at + 11] != 0) return std::nullopt;
  if (length > kMaxBody || length > bytes.size() - at - kRecordHeader) return std::nullopt;
  if (crc32c(bytes.substr(at + 8, length + 12)) != get<std::uint32_t>(bytes, at + 4)) return std::nullopt;
  return RecordView{.type = type,
                    .body = bytes.substr(at + kRecordHeader, length),
                    .stable_bytes = get<std::uint64_t>(bytes, at + 12),
                    .end = at + kRecordHeader + length};
}

// The bytes of a segment, mapped; a log of many megabytes is not copied.
class SegmentFile {
 public:
  static Result<SegmentFile> map(const std::string& path) {
    DSEC_ASSIGN(sys::Fd fd, sys::open_at(AT_FDCWD, path, O_RDONLY));
    struct stat info {};
    if (fstat(fd.get(), &info) != 0) return errno_error("read the size of " + path, errno);
    SegmentFile file;
    file.size_ = static_cast<std::size_t>(info.st_size);
    if (file.size_ > 0) {
      void* mapped = mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
      if (mapped == MAP_FAILED) return errno_error("map " + path, errno);
      file.data_ = static_cast<const char*>(mapped);
    }
    return file;
  }
  SegmentFile() = default;
  SegmentFile(SegmentFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  SegmentFile& operator=(SegmentFile&&) = delete;
  ~SegmentFile() {
    if (data_ != nullptr) munmap(const_cast<char*>(data_), size_);
  }
  std::string_view bytes() const { return {data_, size_}; }

 private:
  const char* data_ = nullptr;
  std::size_t size_ = 0;
};

struct SegmentHeader {
  std::uint32_t flags = 0;
};

// nullopt: too short or torn, as a crash during its creation leaves it.
Result<std::optional<SegmentHeader>> read_header(std::string_view bytes, const std::string& path) {
  if (bytes.size() < kSegmentHeader) return std::optional<SegmentHeader>();
  if (!bytes.starts_with(kMagic)) return Error(ErrorCode::kDataFault, path + " is not a segment of an edge log");
  const auto format = get<std::uint32_t>(bytes, 8);
  if (format > kWalFormat)
    return Error(ErrorCode::kUnsupported,
                 fmt::format("{} has format {}, this program knows {}: use the newer program", path, format, kWalFormat));
  if (crc32c(bytes.substr(0, 24)) != get<std::uint32_t>(bytes, 24))
    return Error(ErrorCode::kDataFault, path + ": the header is damaged");
  return std::optional<SegmentHeader>(SegmentHeader{get<std::uint32_t>(bytes, 12)});
}

// Shows every record; returns the offset behind the last good one.
Result<std::size_t> scan(std::string_view bytes, const std::string& path, const Wal::Visitor& visit) {
  std::size_t at = kSegmentHeader;
  while (at < bytes.size()) {
    const auto record = record_at(bytes, at);
    if (!record) break;
    DSEC_TRY(visit(record->type, record->body));
    at = record->end;
  }
  for (std::size_t probe = at + 1; probe < bytes.size(); ++probe) {
    const auto later = record_at(bytes, probe);
    if (later && later->stable_bytes > at)
      return Error(ErrorCode::kDataFault,
                   fmt::format("{} is damaged at byte {}: a record that was on stable storage is bad, and good ones follow at "
                               "byte {}. Nothing was changed; restore the file or move the log aside",
                               path, at, probe));
  }
  return at;
}

Result<std::vector<std::uint64_t>> list_segments(const std::string& directory) {
  std::vector<std::uint64_t> found;
  DIR* dir = opendir(directory.c_str());
  if (dir == nullptr) return errno_error("list " + directory, errno);
  while (const dirent* entry = readdir(dir)) {
    const std::string_view name = entry->d_name;
    if (name.size() != 20 || !name.ends_with(".log")) continue;
    std::uint64_t sequence = 0;
    bool digits = true;
    for (const char c : name.substr(0, 16)) {
      digits = digits && c >= '0' && c <= '9';
      sequence = sequence * 10 + static_cast<std::uint64_t>(c - '0');
    }
    if (digits) found.push_back(sequence);
  }
  closedir(dir);
  std::sort(found.begin(), found.end());
  return found;
}

Result<void> sync_directory(const std::string& directory) {
  DSEC_ASSIGN(const sys::Fd fd, sys::open_at(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY));
  if (fsync(fd.get()) != 0) return errno_error("fsync " + directory, errno);
  return {};
}

}  // namespace

std::string encode_wal_record(std::uint8_t type, std::string_view body, std::uint64_t stable_bytes) {
  std::string out;
  out.reserve(kRecordHeader + body.size());
  put<std::uint32_t>(out, static_cast<std::uint32_t>(body.size()));
  put<std::uint32_t>(out, 0);
  out.push_back(static_cast<char>(type));
  out.append(3, '\0');
  put<std::uint64_t>(out, stable_bytes);
  out.append(body);
  const std::uint32_t sum = crc32c(std::string_view(out).substr(8));
  std::memcpy(out.data() + 4, &sum, sizeof sum);
  return out;
}

Result<std::unique_ptr<Wal>> Wal::open(Options options, const Visitor& visit) {
  DSEC_TRY(sys::make_directories(options.directory, 0700));
  std::unique_ptr<Wal> wal(new Wal(std::move(options)));
  const std::string& directory = wal->options_.directory;
  DSEC_ASSIGN(std::vector<std::uint64_t> sequences, list_segments(directory));

  // A base voids what is older; a crash may have left both.
  std::size_t first = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::string path = directory + "/" + segment_name(sequences[i]);
    DSEC_ASSIGN(const SegmentFile file, SegmentFile::map(path));
    DSEC_ASSIGN(const std::optional<SegmentHeader> header, read_header(file.bytes(), path));
    if (!header && i + 1 != sequences.size()) return Error(ErrorCode::kDataFault, path + ": the header is missing");
    if (header && (header->flags & kBaseFlag) != 0) first = i;
  }
  for (std::size_t i = 0; i < first; ++i) ::unlink((directory + "/" + segment_name(sequences[i])).c_str());

  for (std::size_t i = first; i < sequences.size(); ++i) {
    const std::string path = directory + "/" + segment_name(sequences[i]);
    const bool last = i + 1 == sequences.size();
    DSEC_ASSIGN(const SegmentFile file, SegmentFile::map(path));
    if (file.bytes().size() < kSegmentHeader) {  // the newest, cut while it was made: nothing is in it
      ::unlink(path.c_str());
      continue;
    }
    DSEC_ASSIGN(const std::size_t end, scan(file.bytes(), path, visit));
    if (end != file.bytes().size()) {
      if (!last) return Error(ErrorCode::kDataFault, fmt::format("{} is damaged at byte {}, before its end", path, end));
      if (::truncate(path.c_str(), static_cast<off_t>(end)) != 0) return errno_error("cut the torn end of " + path, errno);
    }
    wal->sealed_.push_back(sequences[i]);
    wal->sealed_bytes_ += end;
  }

  // Always a new segment: what was read is never written again.
  const std::uint64_t next = sequences.empty() ? 1 : sequences.back() + 1;
  if (!wal->sealed_.empty()) {
    const std::string path = directory + "/" + segment_name(wal->sealed_.back());
    DSEC_ASSIGN(const sys::Fd fd, sys::open_at(AT_FDCWD, path, O_RDONLY));
    if (fsync(fd.get()) != 0) return errno_error("fsync " + path, errno);
  }
  DSEC_TRY(wal->start_segment(next));
  wal->thread_ = std::thread([log = wal.get()] { log->run_commits(); });
  return wal;
}

Wal::~Wal() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

Result<void> Wal::start_segment(std::uint64_t sequence) {
  DSEC_TRY(fail_point("edge.wal.segment"));
  const std::string path = options_.directory + "/" + segment_name(sequence);
  DSEC_ASSIGN(sys::Fd fd, sys::open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600));
  DSEC_TRY(sys::write_all(fd.get(), encode_segment_header(sequence, 0)));
  if (fsync(fd.get()) != 0) return errno_error("fsync " + path, errno);
  DSEC_TRY(sync_directory(options_.directory));
  const std::lock_guard lock(mutex_);
  segment_ = std::make_shared<sys::Fd>(std::move(fd));
  sequence_ = sequence;
  segment_start_ = written_.load();
  segment_size_ = kSegmentHeader;
  return {};
}

Result<std::uint64_t> Wal::append(std::uint8_t type, std::string_view body) {
  DSEC_TRY(fail_point("edge.wal.append"));
  if (broken_.load()) return Error(ErrorCode::kDataFault, "the edge log cannot reach stable storage any more");
  if (body.size() > kMaxBody) return Error(ErrorCode::kTooLarge, "a log record is larger than 32 MiB");
  if (segment_size_ >= options_.segment_bytes) {
    // Sealed segments are whole on stable storage, so that only the newest can have a torn end.
    if (fdatasync(segment_->get()) != 0) {
      broken_ = true;
      return errno_error("fdatasync the edge log", errno);
    }
    synced_ = written_.load();
    const std::uint64_t old_size = segment_size_;
    const std::uint64_t old_sequence = sequence_;
    DSEC_TRY(start_segment(sequence_ + 1));
    const std::lock_guard lock(mutex_);
    sealed_.push_back(old_sequence);
    sealed_bytes_ += old_size;
  }

  const std::uint64_t synced = synced_.load();
  const std::uint64_t stable = kSegmentHeader + (synced > segment_start_ ? synced - segment_start_ : 0);
  const std::string record = encode_wal_record(type, body, stable);
  if (Result<void> written = sys::write_all(segment_->get(), record); !written.ok()) {
    // A part of the record may be there; the log must end behind a whole one.
    if (ftruncate(segment_->get(), static_cast<off_t>(segment_size_)) != 0) broken_ = true;
    return std::move(written).within("append to the edge log").error();
  }
  DSEC_TRY(fail_point("edge.wal.appended"));
  segment_size_ += record.size();
  return written_.fetch_add(record.size()) + record.size();
}

void Wal::commit(std::uint64_t position, std::function<void(Result<void>)> done) {
  {
    const std::lock_guard lock(mutex_);
    waiters_.push_back({position, std::move(done)});
  }
  wake_.notify_one();
}

Result<void> Wal::sync() {
  DSEC_TRY(fail_point("edge.wal.sync"));
  if (fdatasync(segment_->get()) != 0) {
    broken_ = true;
    return errno_error("fdatasync the edge log", errno);
  }
  synced_ = written_.load();
  return {};
}

void Wal::run_commits() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !waiters_.empty(); });
    if (waiters_.empty()) return;
    std::vector<Waiter> group = std::move(waiters_);
    waiters_.clear();
    // Everything appended before this line is in the group's sync: a segment that
    // was sealed meanwhile was synced by the sealing.
    const std::uint64_t target = written_.load();
    const std::shared_ptr<sys::Fd> segment = segment_;
    lock.unlock();
    Result<void> outcome = fail_point("edge.wal.commit");
    const bool needed = std::any_of(group.begin(), group.end(), [&](const Waiter& w) { return w.position > synced_.load(); });
    if (outcome.ok() && needed) {
      if (broken_.load() || fdatasync(segment->get()) != 0) {
        // After a failed fsync the kernel may have dropped the pages: nothing can be promised again.
        outcome = errno_error("fdatasync the edge log", errno);
        broken_ = true;
      } else {
        std::uint64_t seen = synced_.load();
        while (seen < target && !synced_.compare_exchange_weak(seen, target)) {
        }
      }
    }
    for (Waiter& waiter : group) waiter.done(outcome);
    group.clear();
    lock.lock();
  }
}

bool Wal::wants_compaction() const {
  const std::lock_guard lock(mutex_);
  return sealed_.size() >= 2 && sealed_bytes_ >= std::min(kCompactionFloor, 2 * options_.segment_bytes);
}

Result<void> Wal::compact(Filter& filter) {
  DSEC_TRY(fail_point("edge.wal.compact"));
  std::vector<std::uint64_t> merged;
  {
    const std::lock_guard lock(mutex_);
    merged = sealed_;
  }
  if (merged.size() < 2) return {};
  const auto each = [&](const Visitor& visit) -> Result<void> {
    for (const std::uint64_t sequence : merged) {
      const std::string path = options_.directory + "/" + segment_name(sequence);
      DSEC_ASSIGN(const SegmentFile file, SegmentFile::map(path));
      DSEC_ASSIGN(const std::size_t end, scan(file.bytes(), path, visit));
      if (end != file.bytes().size()) return Error(ErrorCode::kDataFault, path + " is damaged");
    }
    return {};
  };
  DSEC_TRY(each([&](std::uint8_t type, std::string_view body) -> Result<void> {
    filter.note(type, body);
    return {};
  }));

  const std::string target = options_.directory + "/" + segment_name(merged.back());
  const std::string temporary = target + ".tmp";
  DSEC_ASSIGN(const sys::Fd out, sys::open_at(AT_FDCWD, temporary, O_WRONLY | O_CREAT | O_TRUNC, 0600));
  std::string buffer = encode_segment_header(merged.back(), kBaseFlag);
  std::uint64_t size = 0;
  DSEC_TRY(each([&](std::uint8_t type, std::string_view body) -> Result<void> {
    if (!filter.keep(type, body)) return {};
    // The file is on stable storage before it has its name: all of it counts as stable.
    buffer += encode_wal_record(type, body, size + buffer.size());
    if (buffer.size() < (1 << 20)) return {};
    size += buffer.size();
    DSEC_TRY(sys::write_all(out.get(), buffer));
    buffer.clear();
    return {};
  }));
  size += buffer.size();
  DSEC_TRY(sys::write_all(out.get(), buffer));
  if (fsync(out.get()) != 0) return errno_error("fsync " + temporary, errno);
  DSEC_TRY(fail_point("edge.wal.compact.rename"));
  if (::rename(temporary.c_str(), target.c_str()) != 0) return errno_error("rename " + temporary, errno);
  DSEC_TRY(sync_directory(options_.directory));
  DSEC_TRY(fail_point("edge.wal.compact.unlink"));
  for (std::size_t i = 0; i + 1 < merged.size(); ++i)
    ::unlink((options_.directory + "/" + segment_name(merged[i])).c_str());

  const std::lock_guard lock(mutex_);
  sealed_.erase(sealed_.begin(), sealed_.begin() + static_cast<std::ptrdiff_t>(merged.size()) - 1);
  sealed_bytes_ = 0;
  return {};
}

}  // namespace dsec::edge
