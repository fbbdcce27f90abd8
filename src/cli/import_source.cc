#include "cli/import_source.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "sys/file.h"

namespace dsec::cli {

Result<SourceSpec> parse_source(const std::string& text) {
  const auto behind = [&text](std::string_view prefix) { return text.substr(prefix.size()); };
  if (text.starts_with("oci:")) return SourceSpec{SourceKind::kOci, behind("oci:")};
  if (text.starts_with("docker-archive:")) return SourceSpec{SourceKind::kDockerArchive, behind("docker-archive:")};
  if (text.starts_with("docker://") || text.starts_with("debian:")) {
    if (text == "docker://" || text == "debian:") return invalid_argument("\"" + text + "\" names nothing: write docker://NAME:TAG or debian:SUITE[,PACKAGE…]");
    return SourceSpec{SourceKind::kServerSide, text};
  }
  if (text.empty()) return invalid_argument("the source is empty: a directory, a tar file, oci:PATH, docker-archive:PATH, docker://REF or debian:SUITE[,PACKAGE…]");
  return SourceSpec{SourceKind::kTree, text};
}

std::string name_of_reference(std::string_view reference) {
  reference = reference.substr(0, reference.find('@'));
  const std::size_t slash = reference.find('/');
  const std::string_view first = reference.substr(0, slash);
  const bool registry = slash != std::string_view::npos && (first.find_first_of(".:") != std::string_view::npos || first == "localhost");
  if (registry) reference.remove_prefix(slash + 1);
  return std::string(reference) + (reference.find(':') == std::string_view::npos ? ":latest" : "");
}

Result<std::unique_ptr<SourceStream>> SourceStream::open(const SourceSpec& source, std::optional<Owner> owner) {
  auto stream = std::make_unique<SourceStream>();
  stream->path_ = source.path;
  struct stat info {};
  if (source.path == "-") {
    DSEC_ASSIGN(stream->file_, sys::duplicate(STDIN_FILENO));
    return stream;
  }
  if (::stat(source.path.c_str(), &info) != 0) {
    if (errno == ENOENT) return Error(ErrorCode::kNotFound, source.path + ": no such file or directory on this machine (sources are read by the client)");
    return errno_error(source.path, errno);
  }
  if (S_ISDIR(info.st_mode)) {
    DSEC_ASSIGN(TarWriter writer, TarWriter::open(source.path, {.owner = owner, .prefix = ""}));
    stream->tree_ = std::make_unique<TarWriter>(std::move(writer));
    return stream;
  }
  if (owner) return invalid_argument("--owner goes with a directory; " + source.path + " is a file, whose archive says the owners");
  DSEC_ASSIGN(stream->file_, sys::open_at(AT_FDCWD, source.path, O_RDONLY));
  if (S_ISREG(info.st_mode)) stream->total_ = static_cast<std::uint64_t>(info.st_size);
  return stream;
}

Result<std::string> SourceStream::next() {
  std::string part;
  if (tree_) {
    DSEC_ASSIGN(part, tree_->next());
  } else {
    part.resize(256 << 10);
    ssize_t got;
    do {
      got = ::read(file_.get(), part.data(), part.size());
    } while (got < 0 && errno == EINTR);
    if (got < 0) return errno_error(path_, errno);
    part.resize(static_cast<std::size_t>(got));
  }
  sent_ += part.size();
  return part;
}

}  // namespace dsec::cli
