// An origin in a directory: a local one, or a mount of 3FS, CephFS, MooseFS or NFS.
//
// Made for mounts whose servers may be gone: see expendable_threads.h. Objects
// are published by writing below ".incoming", fsync, a rename that replaces
// nothing, and fsync of the folder.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "origin/expendable_threads.h"
#include "origin/origin.h"
#include "origin/usrbio_library.h"

namespace dsec::origin {

class OpenFile;
class UsrbioRing;

class DirectoryOrigin final : public Origin {
 public:
  struct Options {
    std::string directory;  // absolute; there already
    ExpendableThreads::Options threads = {};
    std::string usrbio_library = UsrbioLibrary::kName;  // "" = never
    std::string mountinfo = "/proc/self/mountinfo";
  };
  // kInvalidArgument when it is no directory. On a mount of 3FS whose library
  // can be loaded, reads go through USRBIO; when they could not, the log says why.
  static Result<std::unique_ptr<DirectoryOrigin>> create(Options options, Deadline deadline);
  ~DirectoryOrigin() override;

  Result<std::unique_ptr<Object>> open(const ObjectName& name, Deadline deadline) override;
  Result<void> publish(const ObjectName& name, const Content& content, Deadline deadline) override;
  Result<ObjectList> list(const std::string& after, std::size_t limit, Deadline deadline) override;
  Result<void> remove(const ObjectName& name, Deadline deadline) override;
  Result<std::vector<Leftover>> leftovers(Deadline deadline) override;
  Result<void> remove_leftover(const Leftover& leftover, Deadline deadline) override;
  std::string description() const override { return directory_; }
  // Whether it is a mount of 3FS, and why it is read without USRBIO, if it is.
  bool is_3fs() const { return ring_ != nullptr || !usrbio_.ok(); }
  const Result<void>& usrbio() const { return usrbio_; }

  // Calls that the file system has not let go of.
  std::size_t given_up() const { return threads_->given_up(); }

 private:
  static constexpr const char* kIncoming = "/.incoming";  // <object's file name>.<32 digits>

  DirectoryOrigin(Options options, long file_system);
  std::string path(const ObjectName& name) const { return directory_ + "/" + name.path(); }
  void use_usrbio(const Options& options, dev_t device, Deadline deadline);
  Result<void> check_place(Deadline deadline) const;
  Result<std::shared_ptr<OpenFile>> write_incoming(const std::string& path, const Content& content, Deadline deadline);
  Result<void> give_name(const std::string& incoming, const ObjectName& name, Deadline deadline);

  const std::string directory_;
  const long file_system_;  // statfs's f_type at the start
  const std::shared_ptr<ExpendableThreads> threads_;
  // Set by create(): none where files are read by system calls, and why on 3FS.
  std::shared_ptr<UsrbioRing> ring_;
  Result<void> usrbio_;
};

}  // namespace dsec::origin
