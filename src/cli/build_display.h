// How a build looks while it goes on: on a terminal the running step with its last
// lines, elsewhere everything, line by line.
#pragma once

#include <boost/json.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace dsec::cli {

class BuildDisplay {
 public:
  enum class Form { kTerminal, kPlain, kSilent };
  explicit BuildDisplay(Form form) : form_(form) {}
  ~BuildDisplay() { clear(); }
  BuildDisplay(const BuildDisplay&) = delete;
  BuildDisplay& operator=(const BuildDisplay&) = delete;

  // An event of the operation's stream: its state, or a piece of output.
  void take(const boost::json::object& event);
  void clear();
  // What a command said last, where it does not stand above already.
  void show_last_words(std::string_view text);

 private:
  void take_steps(const boost::json::array& steps);
  void take_output(std::size_t step, std::string_view text);
  void say(const std::string& line);
  void draw();

  static constexpr std::size_t kShownLines = 5;

  const Form form_;
  std::vector<std::string> states_;
  std::size_t running_ = 0;
  std::string running_text_;
  std::chrono::steady_clock::time_point begun_{};
  std::string partial_;            // a line that has no end yet
  std::deque<std::string> lines_;  // the last ones of the running step
  std::size_t drawn_ = 0;          // lines on the terminal that go away
};

}  // namespace dsec::cli
