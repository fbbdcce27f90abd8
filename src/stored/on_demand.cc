#include "stored/on_demand.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <thread>

#include "origin/chunk_index.h"
#include "protocol/keeper_messages.h"
#include "stored/fuse_mount.h"
#include "sys/file.h"

namespace dsec::stored {

namespace {

constexpr const char* kKeptMount = "stored/mount";
constexpr std::string_view kIndexSuffix = ".index";
constexpr std::size_t kMaxIndexBytes = 1 << 30;
const std::string kChannel(protocol::kStoredChannel);

struct Kept {
  sys::Fd channel;
  sys::Fd mount;
};

Result<Kept> kept_by(sys::DescriptorKeeper& keeper) {
  Kept out;
  DSEC_ASSIGN(std::vector<sys::KeptDescriptor> all, keeper.get("stored/"));
  for (sys::KeptDescriptor& one : all) {
    if (one.name == kChannel) out.channel = std::move(one.fd);
    if (one.name == kKeptMount) out.mount = std::move(one.fd);
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<OnDemand>> OnDemand::start(std::string data_dir, const Config& config, sys::DescriptorKeeper& keeper, Deadline deadline) {
  DSEC_ASSIGN(Kept kept, kept_by(keeper));
  const Result<Config> before = load_config(data_dir);
  const bool same = before.ok() && *before == config;
  if (!same) DSEC_TRY(save_config(data_dir, config));
  if (!kept.channel || !kept.mount) {
    DSEC_ASSIGN(FuseFilesystem fresh, make_filesystem());
    kept = {std::move(fresh.channel), std::move(fresh.mount)};
    DSEC_TRY(keeper.put(kKeptMount, kept.mount.get()));
  }
  if (!same) DSEC_TRY(keeper.drop(kChannel));
  DSEC_TRY(keeper.put(kChannel, kept.channel.get()));
  std::unique_ptr<OnDemand> made(new OnDemand(folders_of(data_dir).state, std::move(kept.mount)));
  DSEC_TRY(made->wait_for_answer(deadline));
  return made;
}

// A name that is never there: the answer is no, but it is an answer.
Result<void> OnDemand::wait_for_answer(Deadline deadline) const {
  DSEC_ASSIGN(sys::Fd mount, sys::duplicate(mount_.get()));
  auto asked = std::make_shared<std::promise<int>>();
  std::future<int> answer = asked->get_future();
  // Left behind when there is no answer: it ends with the filesystem or with this process.
  std::thread([asked, at = std::move(mount)] {
    const sys::Fd none(::openat(at.get(), "is-anybody-there", O_RDONLY | O_CLOEXEC));
    asked->set_value(none ? 0 : errno);
  }).detach();
  if (answer.wait_for(deadline.left()) != std::future_status::ready)
    return Error(ErrorCode::kUnavailable, "dsec-stored does not answer; run/keeper.log says why");
  if (const int error = answer.get(); error != ENOENT) return errno_error("ask dsec-stored", error);
  return {};
}

Result<void> OnDemand::serve(const std::string& hex, std::string_view index) { return sys::replace_file(index_path(hex), index, 0600); }

Result<image::DataOnDemand::File> OnDemand::find(const std::string& hex) {
  DSEC_ASSIGN(const std::string bytes, sys::read_file(index_path(hex), kMaxIndexBytes));
  DSEC_ASSIGN(const origin::ChunkIndex index, origin::ChunkIndex::parse(bytes));
  return File{.path = "/proc/self/fd/" + std::to_string(mount_.get()) + "/" + hex, .bytes = index.object_bytes()};
}

Result<void> OnDemand::withdraw(const std::string& hex) {
  if (::unlink(index_path(hex).c_str()) != 0 && errno != ENOENT) return errno_error("withdraw " + hex, errno);
  return {};
}

Result<std::vector<std::string>> OnDemand::list() const {
  DSEC_ASSIGN(std::vector<std::string> names, sys::list_directory(folder_));
  std::erase_if(names, [](const std::string& name) { return !name.ends_with(kIndexSuffix); });
  for (std::string& name : names) name.resize(name.size() - kIndexSuffix.size());
  return names;
}

}  // namespace dsec::stored
