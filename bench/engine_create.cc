// The engine alone: create until the agent has answered Hello, and destroy.
//
//   engine_create quick|full --rootfs DIR [--rounds N] [--live N]
//   engine_create turns [--no-v1] --rootfs DIR
//
// turns: one sandbox for each line of standard input; prints the microseconds from
// its create until the agent has answered, those until a first `echo hello` in it
// has printed and ended, and those of its destroy.
//
// Three runs, each with the host's v1 controllers and without: one after another
// on one thread; create and destroy sustained on two threads, the refilling of
// slots included; and one more beside ever more live ones.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backend/container/container_backend.h"
#include "backend/keeper_client.h"
#include "engine_agent.h"
#include "sys/mounts.h"

namespace {

using namespace dsec;
namespace fs = std::filesystem;
using backend::container::ContainerBackend;
using Clock = std::chrono::steady_clock;

double usec_since(Clock::time_point start) { return std::chrono::duration<double, std::micro>(Clock::now() - start).count(); }
Deadline soon() { return Deadline::in(std::chrono::seconds(30)); }

class Samples {
 public:
  void add(double v) { values_.push_back(v); }
  void add(const Samples& other) { values_.insert(values_.end(), other.values_.begin(), other.values_.end()); }
  bool empty() const { return values_.empty(); }
  double at(double quantile) {
    std::sort(values_.begin(), values_.end());
    return values_[static_cast<std::size_t>(quantile * static_cast<double>(values_.size() - 1) + 0.5)];
  }
  void print(const char* name) {
    if (values_.empty()) return;
    std::printf("  %-28s n=%-5zu p50 %8.0f  p90 %8.0f  p99 %8.0f  us\n", name, values_.size(), at(0.5), at(0.9), at(0.99));
  }

 private:
  std::vector<double> values_;
};

sys::Fd mount_rootfs(const std::string& tree, const std::string& image) {
  const std::string command = "mkfs.erofs --quiet '" + image + "' '" + tree + "' >/dev/null";
  if (std::system(command.c_str()) != 0) die("mkfs.erofs failed");
  auto context = sys::FilesystemContext::open("erofs");
  context.value().set("source", image).value();
  context.value().set_flag("directio").value();
  return context.value().mount(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV).value();
}

struct Steps {
  std::vector<Samples> spawner{protocol::kLaunchSteps};
  Samples launch;  // the whole call to the spawner and back, with the socket's bind
  Samples total;
  Samples echo;  // from the create on
  Samples destroy;
};

class Bench {
 public:
  Bench(bool use_v1, int rootfs) : rootfs_fd_(rootfs) {
    char name[] = "/var/tmp/dsec-engine-XXXXXX";
    data_ = ::mkdtemp(name);
    const std::string programs = fs::read_symlink("/proc/self/exe").parent_path().string();
    keeper_ = std::move(backend::start_or_find_keeper({data_, programs, use_v1}, soon())).value();
    backend_ = std::move(ContainerBackend::create({data_, use_v1})).value();
    backend_->spawner_status(soon()).value();
  }
  ~Bench() {
    backend_.reset();
    (void)keeper_->stop(soon());
    fs::remove_all(data_);
  }

  enum class Then { kNothing, kEcho };
  std::unique_ptr<backend::Instance> create(Steps& steps, Then then = Then::kNothing) {
    backend::LaunchSpec spec;
    spec.id = "bench";
    spec.resources = {.cpu_cores = 1, .memory_mb = 512, .disk_mb = 256, .max_processes = 512};
    spec.greeting = bench::hello_frame();
    backend::Rootfs rootfs;
    rootfs.layers.push_back({"rootfs", rootfs_fd_});
    rootfs.upper.limit_bytes = 256 << 20;
    const auto start = Clock::now();
    auto launched = backend_->launch(spec, rootfs, soon());
    if (!launched.ok()) die("launch: " + launched.error().message());
    steps.launch.add(usec_since(start));
    auto agent = bench::Agent::meet(**launched, soon());
    if (!agent) die("the agent does not answer");
    steps.total.add(usec_since(start));
    if (then == Then::kEcho) {
      if (!agent->echo(**launched, soon())) die("echo did not run");
      steps.echo.add(usec_since(start));
    }
    const auto& nsec = ContainerBackend::last_step_nsec();
    for (std::size_t i = 0; i < nsec.size(); ++i) steps.spawner[i].add(nsec[i] / 1000.0);
    return std::move(*launched);
  }
  void destroy(backend::Instance& instance, Steps& steps) {
    const auto start = Clock::now();
    if (auto destroyed = instance.destroy(soon()); !destroyed.ok()) die("destroy: " + destroyed.error().message());
    steps.destroy.add(usec_since(start));
  }
  ContainerBackend& backend() { return *backend_; }

 private:
  const int rootfs_fd_;
  std::string data_;
  std::unique_ptr<backend::KeeperClient> keeper_;
  std::unique_ptr<ContainerBackend> backend_;
};

void print_steps(Steps& steps) {
  for (std::size_t i = 0; i < protocol::kLaunchSteps; ++i)
    steps.spawner[i].print(protocol::to_string(static_cast<protocol::LaunchStep>(i)));
  steps.launch.print("launch call");
}

void one_by_one(Bench& bench, int rounds) {
  Steps steps, warm;
  for (int i = 0; i < 30; ++i) bench.destroy(*bench.create(warm), warm);
  for (int i = 0; i < rounds; ++i) {
    auto instance = bench.create(steps);
    bench.destroy(*instance, steps);
  }
  std::printf(" one after another:\n");
  print_steps(steps);
  steps.total.print("CREATE -> AGENT READY");
  steps.destroy.print("destroy");
}

void sustained(Bench& bench, int rounds, int threads) {
  std::vector<Steps> all(static_cast<std::size_t>(threads));
  std::atomic<int> next{0};
  const auto start = Clock::now();
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t)
    workers.emplace_back([&, t] {
      Steps& steps = all[static_cast<std::size_t>(t)];
      while (next++ < rounds) bench.destroy(*bench.create(steps), steps);
    });
  for (std::thread& worker : workers) worker.join();
  const double seconds = usec_since(start) / 1e6;
  Samples total, destroy;
  for (Steps& steps : all) total.add(steps.total), destroy.add(steps.destroy);
  const auto status = bench.backend().spawner_status(soon()).value();
  std::printf(" create + destroy on %d threads: %.0f/s (slots made %llu, used again %llu)\n", threads, rounds / seconds,
              static_cast<unsigned long long>(status.prepared), static_cast<unsigned long long>(status.recycled));
  total.print("create -> agent ready");
  destroy.print("destroy");
}

void growth(Bench& bench, int most) {
  std::printf(" beside live ones:\n");
  std::vector<std::unique_ptr<backend::Instance>> live;
  Steps ignored;
  for (int at : {0, most / 4, most / 2, most}) {
    while (static_cast<int>(live.size()) < at) live.push_back(bench.create(ignored));
    // What creating them fast has used up of the pool is there again.
    std::this_thread::sleep_for(std::chrono::seconds(2));
    Steps steps;
    for (int i = 0; i < 100; ++i) {
      auto one = bench.create(steps);
      bench.destroy(*one, steps);
    }
    char name[64];
    std::snprintf(name, sizeof name, "create at %d live", at);
    steps.total.print(name);
    if (at == most) print_steps(steps);
  }
  for (auto& instance : live) bench.destroy(*instance, ignored);
}

int turns(Bench& bench) {
  Steps steps;
  for (int i = 0; i < 30; ++i) bench.destroy(*bench.create(steps), steps);
  std::printf("ready\n");
  for (int c = std::getchar(); c != EOF; c = std::getchar()) {
    if (c != '\n') continue;
    Steps one;
    auto instance = bench.create(one, Bench::Then::kEcho);
    bench.destroy(*instance, one);
    std::printf("%.1f %.1f %.1f\n", one.total.at(0.5), one.echo.at(0.5), one.destroy.at(0.5));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string rootfs;
  bool full = false, by_turns = false, v1 = true;
  int rounds = 0, live = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "full") full = true;
    else if (word == "turns") by_turns = true;
    else if (word == "--no-v1") v1 = false;
    else if (word == "--rootfs" && i + 1 < argc) rootfs = argv[++i];
    else if (word == "--rounds" && i + 1 < argc) rounds = std::atoi(argv[++i]);
    else if (word == "--live" && i + 1 < argc) live = std::atoi(argv[++i]);
    else if (word != "quick") return std::fprintf(stderr, "engine_create: unknown argument %s\n", argv[i]), 2;
  }
  if (rootfs.empty()) return std::fprintf(stderr, "usage: engine_create quick|full --rootfs DIR [--rounds N] [--live N]\n"), 2;
  if (rounds == 0) rounds = full ? 1000 : 300;
  if (live == 0) live = full ? 2000 : 200;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  char image[] = "/var/tmp/dsec-engine-rootfs-XXXXXX";
  ::close(::mkstemp(image));
  const sys::Fd layer = mount_rootfs(rootfs, image);
  if (by_turns) {
    Bench bench(v1, layer.get());
    ::unlink(image);
    return turns(bench);
  }
  const auto each = [&](auto measure) {
    for (bool use_v1 : {true, false}) {
      std::printf("%s\n", use_v1 ? "with the host's cgroup v1 controllers" : "without v1 controllers");
      Bench bench(use_v1, layer.get());
      measure(bench);
    }
  };
  each([&](Bench& bench) {
    one_by_one(bench, rounds);
    sustained(bench, rounds * 2, 1);
    sustained(bench, rounds * 2, 2);
  });
  // Last: the kernel takes thousands of network namespaces apart long after.
  each([&](Bench& bench) { growth(bench, live); });
  ::unlink(image);
  return 0;
}
