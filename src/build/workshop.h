// Workshop: what a build needs of the node it runs on.
//
// Event loop only; every call returns by a deadline of its own or when the build is
// cancelled. After an error of run() or pack() the sandbox is still to be ended.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "image/importer.h"
#include "model/layer.h"
#include "model/sandbox.h"

namespace dsec::build {

namespace asio = boost::asio;

struct RunOrder {
  std::vector<std::string> argv;
  std::map<std::string, std::string> env;  // beside the image's own
  std::function<void(std::string_view bytes)> on_output;  // both streams, in the order of arrival
};
struct RunEnd {
  int exit_code = 0;
  std::string why;     // when it did not exit by itself: "killed", "oom", ...
  bool infra = false;  // not the command's doing
  bool succeeded() const { return why.empty() && exit_code == 0; }
};
struct FileOrder {
  std::string path;
  std::string bytes;
  std::uint32_t uid = 0;
  std::uint32_t mode = 0400;
};

class Workshop {
 public:
  virtual ~Workshop() = default;
  // A FROM that is no stage: an image that the project may use, pulled where that is allowed.
  virtual asio::awaitable<Result<model::LayerRecord>> find_image(std::string reference) = 0;
  // A running sandbox of the project over one image; its id.
  virtual asio::awaitable<Result<std::string>> start(model::LayerRecord image, model::ImageConfig config, model::Network network) = 0;
  virtual asio::awaitable<Result<void>> write_file(std::string sandbox, FileOrder order) = 0;
  // To the command's end and the end of its output.
  virtual asio::awaitable<Result<RunEnd>> run(std::string sandbox, RunOrder order) = 0;
  virtual asio::awaitable<Result<model::LayerRecord>> pack(std::string sandbox, image::PackOptions options) = 0;
  // Idempotent; nothing of it is left.
  virtual asio::awaitable<void> end(std::string sandbox) = 0;
};

}  // namespace dsec::build
