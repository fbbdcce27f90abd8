#include "stored/local_chunks.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

namespace dsec::stored {

using origin::ChunkIndex;

namespace {

std::uint64_t chunks_in(std::uint64_t bytes) { return (bytes + ChunkIndex::kChunkBytes - 1) / ChunkIndex::kChunkBytes; }

bool is_object(const std::string& hex) { return hex.size() > 2 && origin::parse_object_path(hex.substr(0, 2) + "/" + hex + ".data").ok(); }

}  // namespace

Result<CacheFile> LocalChunks::whole(const std::string& hex) const {
  const std::string path = layers_ + "/" + hex + ".data";
  struct stat st{};
  if (layers_.empty() || ::lstat(path.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) return Error(ErrorCode::kNotFound, hex + " is not here");
  return CacheFile::open_complete(path, static_cast<std::uint64_t>(st.st_size));
}

Result<std::string> LocalChunks::bits(const std::string& hex) const {
  if (!is_object(hex)) return Error(ErrorCode::kNotFound, "no object is called so");
  if (const auto blob = blobs_.find(hex); blob.ok()) return (*blob)->chunks_here();
  DSEC_ASSIGN(const CacheFile file, whole(hex));
  const std::uint64_t chunks = chunks_in(file.bytes());
  std::string out((chunks + 7) / 8, '\xff');
  if (chunks % 8 != 0) out.back() = static_cast<char>((1 << chunks % 8) - 1);
  return out;
}

Result<std::string> LocalChunks::read(const std::string& hex, ChunkRun run) const {
  if (!is_object(hex)) return Error(ErrorCode::kNotFound, "no object is called so");
  if (run.count == 0 || run.count > Blob::kMaxRun) return invalid_argument("from 1 to " + std::to_string(Blob::kMaxRun) + " chunks");
  if (const auto blob = blobs_.find(hex); blob.ok()) return (*blob)->copy_of(run);
  DSEC_ASSIGN(const CacheFile file, whole(hex));
  const std::uint64_t chunks = chunks_in(file.bytes());
  if (run.first >= chunks || run.count > chunks - run.first) return Error(ErrorCode::kNotFound, "chunks that the object does not have");
  const std::uint64_t start = run.first * ChunkIndex::kChunkBytes;
  DSEC_ASSIGN(const origin::Buffer bytes, file.read(start, std::min(run.count * ChunkIndex::kChunkBytes, file.bytes() - start)));
  return std::string(bytes.view());
}

}  // namespace dsec::stored
