// An origin in a directory: a local one, or a mount of 3FS, CephFS, MooseFS or NFS.
//
// Made for mounts whose servers may be gone: see expendable_threads.h. Objects
// are published by writing below ".incoming", fsync, a rename that replaces
// nothing, and fsync of the folder.
#pragma once

#include <memory>
#include <string>

#include "origin/expendable_threads.h"
#include "origin/origin.h"

namespace dsec::origin {

class OpenFile;

class DirectoryOrigin final : public Origin {
 public:
  struct Options {
    std::string directory;  // absolute; there already
    ExpendableThreads::Options threads = {};
  };
  // kInvalidArgument when it is no directory. On a mount of 3FS whose library
  // can be loaded, reads go through USRBIO.
  static Result<std::unique_ptr<DirectoryOrigin>> create(Options options, Deadline deadline);
  ~DirectoryOrigin() override;

  Result<std::unique_ptr<Object>> open(const ObjectName& name, Deadline deadline) override;
  Result<void> publish(const ObjectName& name, const Content& content, Deadline deadline) override;
  Result<ObjectList> list(const std::string& after, std::size_t limit, Deadline deadline) override;
  Result<void> remove(const ObjectName& name, Deadline deadline) override;
  std::string description() const override { return directory_; }

  // Calls that the file system has not let go of.
  std::size_t given_up() const { return threads_->given_up(); }

 private:
  DirectoryOrigin(Options options, long file_system);
  std::string path(const ObjectName& name) const { return directory_ + "/" + name.path(); }
  Result<void> check_place(Deadline deadline) const;
  Result<std::shared_ptr<OpenFile>> write_incoming(const std::string& path, const Content& content, Deadline deadline);
  Result<void> give_name(const std::string& incoming, const ObjectName& name, Deadline deadline);

  const std::string directory_;
  const long file_system_;  // statfs's f_type at the start
  const std::shared_ptr<ExpendableThreads> threads_;
};

}  // namespace dsec::origin
