// The filesystem through which layers are read on demand.
#pragma once

#include "base/result.h"
#include "sys/fd.h"

namespace dsec::stored {

struct FuseFilesystem {
  sys::Fd channel;  // /dev/fuse: for dsec-stored, and for the keeper while that is not there
  sys::Fd mount;    // detached, read-only: in no mount namespace, reached by its descriptor
};

// Data objects are files in its root, named by their 64 hex digits. Whoever looks
// into it waits until dsec-stored answers.
Result<FuseFilesystem> make_filesystem();

}  // namespace dsec::stored
