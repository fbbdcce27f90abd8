// Randomness as an argument: the system's for keys and ids, a seed for tests.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>

namespace dsec {

class Random {
 public:
  virtual ~Random() = default;
  virtual void fill(std::span<char> out) = 0;
  std::string bytes(std::size_t n) {
    std::string out(n, '\0');
    fill(out);
    return out;
  }
  std::uint64_t next() {
    std::uint64_t v = 0;
    fill(std::span<char>(reinterpret_cast<char*>(&v), sizeof v));
    return v;
  }
};

// getrandom(2). Safe on any thread.
class SystemRandom final : public Random {
 public:
  void fill(std::span<char> out) override;
};

class SeededRandom final : public Random {
 public:
  explicit SeededRandom(std::uint64_t seed) : engine_(seed) {}
  void fill(std::span<char> out) override {
    for (char& c : out) c = static_cast<char>(engine_());
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace dsec
