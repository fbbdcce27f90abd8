// Progress of long work: a bar on a terminal, a plain line now and then elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace dsec::cli {

class Progress {
 public:
  explicit Progress(std::string title);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(const std::string& stage, std::uint64_t done_bytes, std::uint64_t total_bytes);
  void clear();

 private:
  const std::string title_;
  const bool terminal_;
  std::string stage_;
  std::chrono::steady_clock::time_point begun_;
  std::chrono::steady_clock::time_point shown_{};
  bool on_line_ = false;
};

// "[=====>    ] 52%", `width` columns
std::string bar_text(std::uint64_t done, std::uint64_t total, std::size_t width);

}  // namespace dsec::cli
