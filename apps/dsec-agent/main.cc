// dsec-agent: PID 1 of a sandbox ("aether").
//
//   aether                       as protocol/agent_descriptors.h says
//   dsec-agent --plain [FD]      an ordinary process with a listening socket at FD
//                                (3): no namespaces, no cgroups; for tests and the
//                                fake backend
#include <malloc.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "agent/aether.h"
#include "protocol/agent_descriptors.h"

// Stands in for libstdc++'s, which brings a demangler of 60 KB to name the
// exception that nobody caught.
namespace __gnu_cxx {
void __verbose_terminate_handler() { std::abort(); }
}  // namespace __gnu_cxx

namespace {

// A few small allocations at a time, and memory given back soon: thousands of
// these processes share a node.
void keep_heap_small() {
  // NOLINTBEGIN(concurrency-mt-unsafe): the first act of main, and this program starts no thread
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_TRIM_THRESHOLD, 64 << 10);
  mallopt(M_TOP_PAD, 16 << 10);
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  // NOLINTEND(concurrency-mt-unsafe)
}

}  // namespace

int main(int argc, char** argv) {
  keep_heap_small();
  namespace protocol = dsec::protocol;
  dsec::agent::Aether::Options options;
  options.listener = protocol::kAgentListenFd;
  options.plain = argc > 1 && std::string_view(argv[1]) == "--plain";
  if (options.plain) {
    if (argc > 2) options.listener = std::atoi(argv[2]);
  } else {
    options.standing.inner_user_namespace = protocol::kInnerUserNamespaceFd;
    options.standing.payload_cgroup = protocol::kPayloadCgroupFd;
    const char* v1 = std::getenv(protocol::kAgentV1CgroupsEnv);
    if (v1 != nullptr && std::strcmp(v1, "1") == 0) {
      for (int i = 0; i < 3; ++i) options.standing.v1_tasks[i] = protocol::kV1TasksFds[i];
    }
  }
  return dsec::agent::Aether(options).run();
}
