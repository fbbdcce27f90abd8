#include "cli/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "cli/units_text.h"

namespace dsec::cli {

Progress::Progress(std::string title)
    : title_(std::move(title)), terminal_(::isatty(STDERR_FILENO) == 1), begun_(std::chrono::steady_clock::now()) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (on_line_) std::fputs("\r\x1b[K", stderr);
  on_line_ = false;
}

std::string bar_text(std::uint64_t done, std::uint64_t total, std::size_t width) {
  if (total == 0 || width < 3) return "";
  const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const std::size_t inner = width - 2;
  const auto full = static_cast<std::size_t>(share * static_cast<double>(inner));
  std::string bar = "[" + std::string(full, '=');
  if (full < inner) bar += ">" + std::string(inner - full - 1, ' ');
  return bar + fmt::format("] {:3.0f}%", share * 100);
}

void Progress::update(const std::string& stage, std::uint64_t done_bytes, std::uint64_t total_bytes) {
  const auto now = std::chrono::steady_clock::now();
  const bool fresh = stage != stage_;
  const auto pause = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10'000);
  if (!fresh && now - shown_ < pause) return;
  shown_ = now;
  stage_ = stage;
  const double seconds = std::chrono::duration<double>(now - begun_).count();
  // Some stages know the whole and not how far they are.
  std::string amount = done_bytes == 0 ? "" : bytes_text(done_bytes);
  if (total_bytes != 0) amount += (amount.empty() ? "" : " of ") + bytes_text(total_bytes);
  if (!terminal_) {
    std::fprintf(stderr, "%s: %s%s%s (%.0f s)\n", title_.c_str(), stage.c_str(), amount.empty() ? "" : " ", amount.c_str(), seconds);
    return;
  }
  winsize size{};
  const std::size_t columns = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
  std::string line = fmt::format("{}: {} {} {} {:.0f}s", title_, stage, bar_text(done_bytes, total_bytes, 26), amount, seconds);
  line.resize(std::min(line.size(), columns - 1));
  std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
  on_line_ = true;
}

}  // namespace dsec::cli
