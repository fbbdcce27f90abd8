// The node as a build's workshop: its sandboxes are the caller's, one at a time.
#pragma once

#include <memory>
#include <string>

#include "apiserver/api_server.h"
#include "build/workshop.h"

namespace dsec::apiserver {

// Label of a build's sandboxes: its operation.
inline constexpr const char* kBuildLabel = "dsec.build";

class BuildWorkshop final : public build::Workshop {
 public:
  struct Options {
    model::Principal who;
    model::Resources resources;
    std::int64_t most_seconds = 3600;  // of one command
  };
  BuildWorkshop(ApiServer& server, std::shared_ptr<Operation> operation, Options options) : server_(server), operation_(std::move(operation)), options_(std::move(options)) {}

  asio::awaitable<Result<model::LayerRecord>> find_image(std::string reference) override;
  asio::awaitable<Result<std::string>> start(model::LayerRecord image, model::ImageConfig config, model::Network network) override;
  asio::awaitable<Result<void>> write_file(std::string sandbox, build::FileOrder order) override;
  asio::awaitable<Result<build::RunEnd>> run(std::string sandbox, build::RunOrder order) override;
  asio::awaitable<Result<model::LayerRecord>> pack(std::string sandbox, image::PackOptions options) override;
  asio::awaitable<void> end(std::string sandbox) override;
  // The sandbox that runs now, if one does: a cancelled build waits for nothing.
  asio::awaitable<void> end_current();

 private:
  asio::awaitable<Result<model::LayerRecord>> pull(std::string reference);

  ApiServer& server_;
  const std::shared_ptr<Operation> operation_;
  const Options options_;
  std::string current_;
};

}  // namespace dsec::apiserver
