// What an entry of an image that is there already says of itself, as an entry of a new one.
#pragma once

#include "base/result.h"
#include "erofs/entry.h"
#include "erofs/reader.h"

namespace dsec::erofs {

// The marks that overlayfs reads are left out: a writer makes them anew.
Result<EntryMeta> stored_meta(Reader& reader, const StoredInode& node);
Result<bool> is_opaque(Reader& reader, const StoredInode& directory);

}  // namespace dsec::erofs
