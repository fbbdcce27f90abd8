// How a file of an image that is there already lies in its data, so that another
// image can refer to it.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "erofs/content_store.h"
#include "erofs/reader.h"

namespace dsec::erofs {

// The device of the content counts as in the image's own table, from 1; 0 where
// nothing is in a data file. `tail` keeps what the content's tail points to.
// nullopt for a form that the writer does not make, and for a tail longer than
// `room`: such a file is to be copied. The file is not empty.
Result<std::optional<Content>> describe_content(Reader& reader, const StoredInode& file, std::uint64_t room, std::string& tail);

}  // namespace dsec::erofs
