// An origin that is opened when it is first needed, and again after it could not be.
//
// What is cached can be served while the store is away.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "origin/origin.h"

namespace dsec::origin {

class LateOrigin final : public Origin {
 public:
  using Opener = std::function<Result<std::unique_ptr<Origin>>(Deadline)>;
  // `description` is what people are told while it is not open.
  LateOrigin(std::string description, Opener opener) : description_(std::move(description)), opener_(std::move(opener)) {}

  Result<std::unique_ptr<Object>> open(const ObjectName& name, Deadline deadline) override;
  Result<void> publish(const ObjectName& name, const Content& content, Deadline deadline) override;
  Result<ObjectList> list(const std::string& after, std::size_t limit, Deadline deadline) override;
  Result<void> remove(const ObjectName& name, Deadline deadline) override;
  Result<std::vector<Leftover>> leftovers(Deadline deadline) override;
  Result<void> remove_leftover(const Leftover& leftover, Deadline deadline) override;
  std::string description() const override { return description_; }

 private:
  Result<Origin*> opened(Deadline deadline);

  const std::string description_;
  const Opener opener_;
  std::mutex mutex_;  // guards open_; held over no opening
  std::unique_ptr<Origin> open_;  // once there, for good
};

}  // namespace dsec::origin
