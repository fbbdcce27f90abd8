// SubvolumeStock: empty subvolumes of the disk pool, made ahead and dropped behind.
//
// Making one takes 150 us and dropping one 200: a thread of its own does both, so
// that no launch and no end waits for it. A name tells what a subvolume is: kSpare
// belongs to nobody, and a start drops those of an earlier life.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/result.h"
#include "sys/fd.h"

namespace dsec::edge {

struct Subvolume {
  std::string name;
  sys::Fd directory;
  std::uint64_t tree = 0;  // its id, and that of its quota group
};

// Of the subvolume that this file lies in.
Result<std::uint64_t> tree_of(int fd);

class SubvolumeStock {
 public:
  // `root` is the top directory of a btrfs file system; it outlives the stock.
  static Result<std::unique_ptr<SubvolumeStock>> open(int root);
  // Waits until what was thrown away is dropped.
  ~SubvolumeStock();
  SubvolumeStock(const SubvolumeStock&) = delete;
  SubvolumeStock& operator=(const SubvolumeStock&) = delete;

  // One that is nobody's, under a name that its taker changes; with the directories upper and
  // work. Any thread.
  Result<Subvolume> take();
  // A read-only one that holds what that of `source` holds now, named as spares are.
  Result<Subvolume> snapshot(int source);
  // Its name and its space are free soon. Nothing of that name is no error. Any thread.
  void throw_away(std::string name);
  // Waits for the drop of what was thrown away under this name. False: nothing was. Any thread.
  bool wait_for_drop(const std::string& name);

 private:
  explicit SubvolumeStock(int root) : root_(root) {}
  Result<Subvolume> make();
  std::string next_name();
  void run();

  const int root_;
  std::mutex mutex_;  // guards the rest; not held across an ioctl
  std::condition_variable changed_;
  std::condition_variable dropped_;
  std::deque<Subvolume> spares_;
  std::deque<std::string> trash_;  // the first is being dropped
  std::uint64_t next_number_ = 1;
  bool filling_ = true;
  bool hurried_ = false;  // somebody waits for a drop
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dsec::edge
