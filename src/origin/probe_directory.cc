// What a directory is tried for. Every call runs on an expendable thread: the
// mount may be one that does not answer.
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "base/encoding.h"
#include "base/random.h"
#include "origin/expendable_threads.h"
#include "origin/open_file.h"
#include "origin/open_origin.h"
#include "origin/probe.h"

namespace dsec::origin {

namespace {

constexpr auto kFreshEnough = std::chrono::seconds(1);
constexpr auto kLookAgain = std::chrono::milliseconds(1);
constexpr auto kSecondPatience = std::chrono::seconds(15);  // three times what the slowest file system known takes

using Done = bool;
using Step = std::function<Result<Done>()>;

Result<void> run(ExpendableThreads& threads, Step step, Deadline deadline) {
  const Result<Done> done = threads.call<Done>(std::move(step), deadline);
  if (!done.ok()) return done.error();
  return {};
}

Result<Done> make_file(const std::string& path) {
  const sys::Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) return store_error("make " + path, errno);
  const std::string page(Buffer::kAlignment, 'p');
  if (::write(fd.get(), page.data(), page.size()) != static_cast<ssize_t>(page.size()) || ::fsync(fd.get()) != 0) return store_error("write " + path, errno);
  return true;
}

Result<Done> rename_without_replacing(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) != 0) return store_error("rename", errno);
  return true;
}

Result<Done> link_without_replacing(const std::string& from, const std::string& to) {
  if (::link(from.c_str(), to.c_str()) != 0) return store_error("link", errno);
  if (::link(from.c_str(), to.c_str()) == 0 || errno != EEXIST) return Error(ErrorCode::kDataFault, "a name that is taken is given again");
  return true;
}

Result<Done> refuses_to_replace(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return Error(ErrorCode::kDataFault, "it replaced a file");
  if (errno != EEXIST) return store_error("rename over a file", errno);
  return true;
}

Result<Done> open_direct(const std::string& path) {
  const sys::Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (!fd) return store_error("open with O_DIRECT", errno);
  const Buffer page(Buffer::kAlignment);
  if (::pread(fd.get(), const_cast<char*>(page.data()), page.size(), 0) != static_cast<ssize_t>(page.size())) return store_error("read with O_DIRECT", errno);
  return true;
}

// How long the other mount does not know a name that is there.
Result<Done> wait_for_name(const std::string& path, Deadline deadline) {
  while (::access(path.c_str(), F_OK) != 0) {
    if (deadline.passed()) return Error(ErrorCode::kDeadlineExceeded, "the name never came");
    std::this_thread::sleep_for(kLookAgain);
  }
  return true;
}

ProbeRow probe_second(ExpendableThreads& threads, const std::string& seen_there, Deadline whole) {
  const Deadline deadline = Deadline::at(std::min(whole.when(), Deadline::in(kSecondPatience).when()));
  const Instant began = std::chrono::steady_clock::now();
  const Result<void> seen = run(threads, [seen_there, deadline] { return wait_for_name(seen_there, deadline); }, deadline);
  const auto took = std::chrono::steady_clock::now() - began;
  ProbeRow row = probe_row("second mount", seen, Finding::kRefused, "a new name came after " + std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(took).count()) + " ms");
  if (row.finding == Finding::kHolds && took > kFreshEnough) row.finding = Finding::kNoted;
  return row;
}

}  // namespace

std::vector<ProbeRow> probe_directory(const std::string& url, const std::string& second, Deadline deadline) {
  std::vector<ProbeRow> out = probe_origin(url, deadline);
  if (out.back().finding == Finding::kRefused) return out;
  const DirectoryOrigin::Options options = directory_options(url);
  const std::string& directory = options.directory;
  if (const auto origin = DirectoryOrigin::create(options, deadline); origin.ok() && (*origin)->is_3fs())
    out.push_back(probe_row("USRBIO", (*origin)->usrbio(), Finding::kNoted, "reads go past the kernel"));
  ExpendableThreads threads({.name = "probe"});
  SystemRandom random;
  const std::string base = "/.probe-" + to_hex(random.bytes(8));
  const std::string first = directory + base;
  const std::string named = first + "-named";
  const std::string third = first + "-third";
  for (const std::string& path : {first, third}) {
    const Result<void> made = run(threads, [path] { return make_file(path); }, deadline);
    if (!made.ok()) out.push_back(probe_row("write and sync", made, Finding::kRefused));
  }
  out.push_back(probe_row("rename without replacing", run(threads, [first, named] { return rename_without_replacing(first, named); }, deadline), Finding::kNoted));
  if (out.back().finding == Finding::kHolds)
    out.push_back(probe_row("rename over a file", run(threads, [third, named] { return refuses_to_replace(third, named); }, deadline), Finding::kRefused, "EEXIST"));
  else  // as publish() does then
    out.push_back(probe_row("link without replacing", run(threads, [first, named] { return link_without_replacing(first, named); }, deadline), Finding::kRefused));
  if (!second.empty() && out.back().finding == Finding::kHolds) out.push_back(probe_second(threads, second + base + "-named", deadline));
  out.push_back(probe_row("O_DIRECT", run(threads, [third] { return open_direct(third); }, deadline), Finding::kNoted));
  threads.post([first, named, third] {
    for (const std::string& path : {first, named, third}) ::unlink(path.c_str());
  });
  return out;
}

}  // namespace dsec::origin
