// How the import worker shuts itself in before it reads the first byte.
//
// The importer started it in new user, mount, pid, IPC, UTS and (but for
// debian:) network namespaces, as root of a user namespace whose ids 0..65535
// are unprivileged ids of the host; but one that reads an upper as host root.
// Here it gives up the rest: the host's file tree, the capabilities it does not
// need, and most system calls.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace dsec::image {

enum class WorkerProfile {
  kParser,   // archives: a read-only /usr, the private directory, and nothing else
  kReader,   // an upper that it has open already: the private directory and nothing else
  kPackages, // mmdebstrap: also /proc, a small /dev, the node's apt configuration and its network
  kRegistry  // skopeo: /proc, a small /dev, certificates, and what a RegistryGate opens
};

// The private directory (the current one) becomes /work, the root of the file
// tree read-only. With memory_bytes, /work/memory is a filesystem in memory of
// at most that size, gone with the worker. Call before drop_privileges().
// `hosts` is the /etc/hosts of kRegistry.
Result<void> enter_private_tree(WorkerProfile profile, std::uint64_t memory_bytes, const std::string& hosts);
// Bounds memory, processes, descriptors, core dumps and the size of one file.
Result<void> limit_resources(WorkerProfile profile, unsigned long long largest_file);
// No new privileges, the few capabilities that the work needs, the filter. A kReader
// is `run_as` of the host afterwards; the others stay root of their user namespace.
Result<void> drop_privileges(WorkerProfile profile, unsigned run_as = 0);

}  // namespace dsec::image
