// The Store of one machine: a SQLite file in WAL mode.
#pragma once

#include <memory>
#include <string>

#include "store/store.h"

namespace dsec::store {

// path ":memory:" is a store that nobody sees and that is gone with the object.
// kDataFault when the file is no database or was written by a newer dsec.
Result<std::unique_ptr<Store>> open_sqlite_store(const std::string& path);

}  // namespace dsec::store
