#include "image/import_worker.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <clocale>
#include <exception>
#include <functional>

#include "base/clock.h"
#include "base/errno_text.h"
#include "image/confinement.h"
#include "image/copy_worker.h"
#include "image/debian_builder.h"
#include "image/import_messages.h"
#include "image/oci_worker.h"
#include "image/pack_worker.h"
#include "image/registry_worker.h"
#include "image/tar_unpacker.h"
#include "image/worker_layer.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

constexpr int kAnswer = 3;

// The image can be a little larger than what is in it.
std::uint64_t largest_file(const ImportRequest& request) { return request.max_bytes + request.max_bytes / 8 + (1ULL << 30); }

Result<void> say(const std::string& line) { return sys::write_all(kAnswer, line + "\n"); }

// At most ten lines a second; the importer is gone when one cannot be written,
// and then so are we.
class ProgressLine {
 public:
  void operator()(std::string_view stage, std::uint64_t done_bytes) {
    const Instant now = SystemClock().now();
    if (stage == stage_ && now < next_) return;
    stage_ = stage;
    next_ = now + std::chrono::milliseconds(100);
    if (!say(encode(WorkerProgress{stage_, done_bytes})).ok()) ::_exit(1);
  }

 private:
  std::string stage_;
  Instant next_{};
};

Result<ImportResult> import_tar(const ImportRequest& request, ProgressLine& progress) {
  DSEC_ASSIGN(LayerFilesInWork layer, LayerFilesInWork::begin({.overlaps = erofs::Overlaps::kRefuse, .profile = request.profile}));
  TarUnpacker unpacker(*layer.writer, request.at, {request.max_bytes, request.max_entries}, [&](std::uint64_t bytes) { progress("unpack", bytes); });
  DSEC_TRY(unpacker.unpack(STDIN_FILENO));
  if (request.kind == model::LayerKind::kBase) DSEC_TRY(add_mount_points(*layer.writer));
  ImportResult result;
  result.counts = unpacker.counts();
  result.counts.entries += layer.writer->implied_directories();
  progress("build", result.counts.content_bytes);
  DSEC_TRY(layer.finish(unpacker.newest_seconds(), image_identity(request.kind, result, request.diff_id)));
  return result;
}

std::string outcome(int value) { return value < 0 ? errno_text(errno) : "allowed"; }

// What the confinement leaves, tried rather than believed.
ImportResult probe() {
  ImportResult result;
  auto& facts = result.facts;
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[2] = {};
  ::syscall(SYS_capget, &header, data);
  const std::uint64_t effective = static_cast<std::uint64_t>(data[1].effective) << 32 | data[0].effective;
  facts["capabilities"] = std::to_string(effective);
  facts["pid"] = std::to_string(::getpid());
  facts["groups"] = std::to_string(::getgroups(0, nullptr));
  facts["shadow"] = outcome(::open("/etc/shadow", O_RDONLY | O_CLOEXEC));
  facts["host_root"] = outcome(::open("/root", O_RDONLY | O_CLOEXEC));
  facts["write_usr"] = outcome(::open("/usr/.dsec-probe", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  facts["write_root"] = outcome(::open("/.dsec-probe", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  facts["write_work"] = outcome(::open("/work/probe", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  facts["internet_socket"] = outcome(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  facts["unix_socket"] = outcome(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  facts["namespace"] = outcome(static_cast<int>(::syscall(SYS_unshare, 0x10000000)));
  facts["mount"] = outcome(static_cast<int>(::syscall(SYS_mount, "none", "/work", "tmpfs", 0, nullptr)));
  facts["trace"] = outcome(static_cast<int>(::syscall(SYS_ptrace, 0, 0, 0, 0)));
  facts["device"] = outcome(::mknod("/work/device", S_IFBLK | 0600, 0x801));
  return result;
}

WorkerProfile profile_of(ImportMode mode) {
  if (mode == ImportMode::kDebian) return WorkerProfile::kPackages;
  return mode == ImportMode::kInspect || mode == ImportMode::kFetch ? WorkerProfile::kRegistry : WorkerProfile::kParser;
}

Result<ImportResult> confine_and_read_upper(const ImportRequest& request, ProgressLine& progress) {
  DSEC_TRY(enter_private_tree(WorkerProfile::kReader, 0, {}).within("confine the import worker"));
  DSEC_TRY(limit_resources(WorkerProfile::kReader, largest_file(request)).within("confine the import worker"));
  OpenUpper upper;
  if (request.mode == ImportMode::kUpper) {
    DSEC_ASSIGN(upper, open_upper(request));
  }
  DSEC_TRY(drop_privileges(WorkerProfile::kReader, request.upper.run_as).within("confine the import worker"));
  return request.mode == ImportMode::kProbe ? probe() : import_upper(request, upper, std::ref(progress));
}

Result<ImportResult> confine_and_run(const ImportRequest& request, ProgressLine& progress) {
  if (request.upper.run_as != 0) return confine_and_read_upper(request, progress);
  const WorkerProfile profile = profile_of(request.mode);
  DSEC_TRY(enter_private_tree(profile, request.memory_bytes, request.hosts).within("confine the import worker"));
  DSEC_TRY(limit_resources(profile, largest_file(request)).within("confine the import worker"));
  DSEC_TRY(drop_privileges(profile).within("confine the import worker"));
  ::umask(022);
  switch (request.mode) {
    case ImportMode::kTar: return import_tar(request, progress);
    case ImportMode::kArchive: return receive_archive(request, std::ref(progress));
    case ImportMode::kDecompress: return decompress_layer(request);
    case ImportMode::kPart: return convert_layer(request, std::ref(progress));
    case ImportMode::kMerge: return merge_parts(request, std::ref(progress));
    case ImportMode::kInspect: return inspect_registry(request);
    case ImportMode::kFetch: return fetch_from_registry(request);
    case ImportMode::kDebian: {
      progress("build", 0);
      DSEC_TRY(build_debian(request.suite, request.packages, request.memory_bytes != 0 ? "/work/memory" : "/work", "/work/rootfs.tar"));
      return ImportResult{};
    }
    case ImportMode::kProbe: return probe();
    case ImportMode::kCopy: return copy_into_part(request, std::ref(progress));
    case ImportMode::kUpper: break;
  }
  return Error(ErrorCode::kInternal, "unknown import mode");
}

}  // namespace

int import_worker_main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Names in pax headers are UTF-8 and shall come out as the bytes they are.
  std::setlocale(LC_CTYPE, "C.UTF-8");  // NOLINT(concurrency-mt-unsafe): no thread has started yet
  Result<ImportResult> result = Error(ErrorCode::kInternal, "no request");
  if (argc == 3) {
    ProgressLine progress;
    Result<ImportRequest> request = decode_request(argv[2]);
    if (!request.ok()) {
      result = std::move(request).error();
    } else {
      // A library may throw on hostile input; that ends this import only.
      try {
        result = confine_and_run(*request, progress);
      } catch (const std::bad_alloc&) {
        result = Error(ErrorCode::kTooLarge, "the archive needs too much memory to read");
      } catch (const std::exception& exception) {
        result = Error(ErrorCode::kInternal, exception.what());
      }
    }
  }
  const bool said = say(result.ok() ? encode(*result) : encode(result.error())).ok();
  return result.ok() && said ? 0 : 1;
}

}  // namespace dsec::image
