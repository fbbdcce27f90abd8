// dsec-stored, seen from `dsec serve`: it is told what to serve, and its files are
// reached through a mount that is in no mount namespace.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "image/layer_files.h"
#include "stored/config.h"
#include "sys/descriptor_keeper.h"
#include "sys/fd.h"

namespace dsec::stored {

// Safe on any thread.
class OnDemand final : public image::DataOnDemand {
 public:
  // Goes on with the filesystem that the keeper has from an earlier run, or makes
  // one; another configuration than before means another dsec-stored on the same.
  // kUnavailable when dsec-stored does not answer by the deadline. `keeper`
  // outlives this.
  static Result<std::unique_ptr<OnDemand>> start(std::string data_dir, const Config& config, sys::DescriptorKeeper& keeper, Deadline deadline);

  Result<void> serve(const std::string& hex, std::string_view index) override;
  Result<File> find(const std::string& hex) override;
  Result<void> withdraw(const std::string& hex) override;
  Result<std::vector<std::string>> list() const override;

 private:
  OnDemand(std::string folder, sys::Fd mount) : folder_(std::move(folder)), mount_(std::move(mount)) {}
  std::string index_path(const std::string& hex) const { return folder_ + "/" + hex + ".index"; }
  Result<void> wait_for_answer(Deadline deadline) const;

  const std::string folder_;
  const sys::Fd mount_;
};

}  // namespace dsec::stored
