#include "cli/build_display.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "cli/table.h"
#include "cli/terminal.h"

namespace dsec::cli {

namespace json = boost::json;

namespace {

// What a terminal would act on is not for this one.
std::string tame(std::string_view line) {
  std::string out;
  for (std::size_t i = 0; i < line.size(); i++) {
    const auto c = static_cast<unsigned char>(line[i]);
    if (c == 0x1b && i + 1 < line.size() && line[i + 1] == '[') {
      i += 2;
      while (i < line.size() && (line[i] < '@' || line[i] > '~')) i++;
    } else if (c == '\t') {
      out += "  ";
    } else if (c >= 0x20 && c != 0x7f) {
      out += line[i];
    }
  }
  return out;
}

}  // namespace

void BuildDisplay::clear() {
  if (drawn_ == 0) return;
  std::fprintf(stderr, "\x1b[%zuA\x1b[J", drawn_);
  drawn_ = 0;
}

void BuildDisplay::say(const std::string& line) {
  clear();
  std::fprintf(stderr, "%s\n", line.c_str());
}

void BuildDisplay::draw() {
  if (form_ != Form::kTerminal || running_text_.empty()) return;
  clear();
  const std::size_t columns = std::max<std::size_t>(window_size().columns, 20) - 1;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
  const auto put = [&](std::string text) {
    text.resize(std::min(text.size(), columns));
    std::fprintf(stderr, "%s\n", text.c_str());
    drawn_++;
  };
  put(fmt::format("{:5.1f}s {}", seconds, running_text_));
  for (const std::string& line : lines_) put("       | " + line);
}

void BuildDisplay::take_output(std::size_t, std::string_view text) {
  partial_ += text;
  for (std::size_t end = partial_.find('\n'); end != std::string::npos; end = partial_.find('\n')) {
    std::string line = partial_.substr(0, end);
    partial_.erase(0, end + 1);
    while (line.ends_with('\r')) line.pop_back();
    line = tame(line.substr(line.rfind('\r') == std::string::npos ? 0 : line.rfind('\r') + 1));
    if (form_ == Form::kPlain) std::fprintf(stderr, "  | %s\n", line.c_str());
    lines_.push_back(std::move(line));
    if (lines_.size() > kShownLines) lines_.pop_front();
  }
  if (partial_.size() > 4096) partial_.erase(0, partial_.size() - 4096);
  draw();
}

void BuildDisplay::take_steps(const json::array& steps) {
  states_.resize(steps.size());
  for (std::size_t i = 0; i < steps.size(); i++) {
    if (!steps[i].is_object()) continue;
    const json::object& step = steps[i].get_object();
    const std::string state = text_at(step, "state");
    if (state == states_[i]) continue;
    states_[i] = state;
    const std::string title = fmt::format("[{}/{}] {}", i + 1, steps.size(), text_at(step, "text"));
    if (state == "running") {
      running_ = i;
      running_text_ = title;
      begun_ = std::chrono::steady_clock::now();
      lines_.clear();
      partial_.clear();
      if (form_ == Form::kPlain) say(title);
      continue;
    }
    if (state == "waiting") continue;
    if (!partial_.empty()) take_output(i, "\n");
    const double seconds = static_cast<double>(number_at(step, "duration_ms")) / 1000;
    const std::string word = state == "done" ? fmt::format("{:.1f} s", seconds) : state == "cached" ? "cached" : "FAILED";
    if (form_ == Form::kTerminal) say(fmt::format("{:>9} {}", word, title));
    if (form_ == Form::kPlain) say(fmt::format("[{}/{}] {}", i + 1, steps.size(), word));
    running_text_.clear();
    lines_.clear();
  }
  draw();
}

void BuildDisplay::show_last_words(std::string_view text) {
  if (form_ == Form::kPlain) return;
  clear();
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    std::fprintf(stderr, "  | %s\n", tame(line).c_str());
  }
}

void BuildDisplay::take(const json::object& event) {
  if (form_ == Form::kSilent) return;
  if (event.contains("offset")) return take_output(static_cast<std::size_t>(number_at(event, "step")), text_at(event, "text"));
  const json::value* steps = value_at(event, "build.steps");
  if (steps != nullptr && steps->is_array()) take_steps(steps->get_array());
}

}  // namespace dsec::cli
