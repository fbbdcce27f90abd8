// Files of a sandbox: cp and fs.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "cli/file_columns.h"
#include "cli/tar_reader.h"
#include "cli/tar_writer.h"
#include "cli/units_text.h"
#include "cli/verbs.h"
#include "sys/file.h"

namespace dsec::cli {
namespace {

std::string files_target(const std::string& ref, const std::string& tail, const std::string& path, const std::string& user) {
  std::string target = sandbox_target(ref, "/files" + tail) + "?path=" + percent_encode(path);
  if (!user.empty()) target += "&user=" + percent_encode(user);
  return target;
}

struct Place {
  std::string ref;  // "" = here
  std::string path;
};

// "ID:/path" is inside; a path with a slash before its colon is here, as with scp.
Place place_of(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::size_t slash = text.find('/');
  if (colon == std::string::npos || colon == 0 || slash < colon) return {"", text};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

std::string last_of(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

bool is_directory(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// What stands at `path` inside: "" = nothing.
Result<std::string> type_inside(Context& context, const Place& place, const std::string& user) {
  auto info = context.get(files_target(place.ref, "/stat", place.path, user));
  if (!info.ok()) {
    if (info.error().code() == ErrorCode::kNotFound && info.error().message().find("sandbox") == std::string::npos) return std::string();
    return std::move(info).error();
  }
  return info->is_object() ? text_at(info->get_object(), "type") : std::string();
}

Result<void> copy_in(Context& context, const std::string& from, Place to, const std::string& user, const std::string& owner) {
  struct stat info {};
  if (::stat(from.c_str(), &info) != 0) return errno_error(from, errno);
  DSEC_ASSIGN(const std::string there, type_inside(context, to, user));
  // As cp: into a directory that is there, as the name given otherwise.
  if (there == "directory") to.path += (to.path.ends_with('/') ? "" : "/") + last_of(from == "." || from.ends_with("/.") ? "" : from);
  HttpCall call;
  call.method = "PUT";
  call.timeout = std::chrono::seconds(600);
  if (S_ISDIR(info.st_mode)) {
    auto made = context.post(sandbox_target(to.ref, "/files/mkdir"),
                             user.empty() ? json::object{{"path", to.path}, {"parents", true}}
                                          : json::object{{"path", to.path}, {"parents", true}, {"user", user}});
    if (!made.ok()) return std::move(made).error();
    TarWriter::Options options;
    if (!owner.empty()) {
      DSEC_ASSIGN(options.owner, parse_owner(owner));
    }
    DSEC_ASSIGN(TarWriter writer, TarWriter::open(from, std::move(options)));
    call.target = files_target(to.ref, "/archive", to.path, user);
    call.headers = {{"Content-Type", "application/x-tar"}};
    call.body_source = [&writer] { return writer.next(); };
    auto done = context.raw(call);
    return done.ok() ? Result<void>() : Result<void>(std::move(done).error());
  }
  DSEC_ASSIGN(const sys::Fd file, sys::open_at(AT_FDCWD, from, O_RDONLY));
  call.target = files_target(to.ref, "", to.path, user) + fmt::format("&mode={:o}&parents=true", info.st_mode & 0777);
  call.headers = {{"Content-Type", "application/octet-stream"}};
  call.body_source = [&file, &from]() -> Result<std::string> {
    std::string part(256 << 10, '\0');
    const ssize_t got = ::read(file.get(), part.data(), part.size());
    if (got < 0) return errno_error(from, errno);
    part.resize(static_cast<std::size_t>(got));
    return part;
  };
  auto done = context.raw(call);
  return done.ok() ? Result<void>() : Result<void>(std::move(done).error());
}

Result<void> copy_out(Context& context, const Place& from, std::string to, const std::string& user) {
  DSEC_ASSIGN(const std::string type, type_inside(context, from, user));
  if (type.empty()) return Error(ErrorCode::kNotFound, from.ref + ":" + from.path + ": no such file or directory");
  if (is_directory(to)) to += "/" + last_of(from.path);
  HttpCall call;
  call.timeout = std::chrono::seconds(600);
  if (type == "directory") {
    if (::mkdir(to.c_str(), 0755) != 0 && errno != EEXIST) return errno_error(to, errno);
    DSEC_ASSIGN(TarReader reader, TarReader::open(to));
    call.target = files_target(from.ref, "/archive", from.path, user);
    auto done = context.raw(call, [&reader](std::string_view part) { return reader.take(part); });
    if (!done.ok()) return std::move(done).error();
    DSEC_TRY(reader.finish());
    for (const std::string& name : reader.skipped()) note("dsec: left out, no file: " + printable(name));
    return {};
  }
  const std::string partial = to + ".dsec-partial";
  DSEC_ASSIGN(sys::Fd file, sys::open_at(AT_FDCWD, partial, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0644));
  call.target = files_target(from.ref, "", from.path, user);
  auto done = context.raw(call, [&file](std::string_view part) { return sys::write_all(file.get(), part); });
  if (done.ok() && ::rename(partial.c_str(), to.c_str()) == 0) return {};
  const int error_number = errno;
  ::unlink(partial.c_str());
  if (!done.ok()) return std::move(done).error();
  return errno_error(to, error_number);
}

}  // namespace

int cp_verb(Context& context, const std::string& from, const std::string& to, const std::string& user, const std::string& owner) {
  const Place source = place_of(from);
  const Place target = place_of(to);
  if (source.ref.empty() == target.ref.empty())
    return fail(invalid_argument("one of the two places is inside a sandbox: dsec cp FILE ID:/path, or dsec cp ID:/path FILE"), kUsage);
  const auto done = target.ref.empty() ? copy_out(context, source, target.path, user) : copy_in(context, source.path, target, user, owner);
  return done.ok() ? kOk : fail(done.error());
}

int fs_ls_verb(Context& context, const std::string& ref, const std::string& path, bool recursive, const std::string& user, const ListingOptions& options) {
  auto answer = context.get(files_target(ref, "/list", path, user) + (recursive ? "&recursive=true" : ""));
  if (!answer.ok()) return fail(answer.error());
  json::array items;
  if (answer->is_array()) items = answer->get_array();
  for (const char* key : {"entries", "items"})
    if (const json::value* found = answer->is_object() ? answer->get_object().if_contains(key) : nullptr; found && found->is_array())
      items = found->get_array();
  const char* key_of_name = recursive ? "path" : "name";
  const auto name = [key_of_name](const json::object& o) { return text_at(o, key_of_name); };
  const auto text = listing(items, file_columns(key_of_name), name, options);
  if (!text.ok()) return fail(text.error(), kUsage);
  print(*text);
  if (answer->is_object() && text_at(answer->get_object(), "truncated") == "true") note("dsec: the listing is cut; name a directory further down");
  return kOk;
}

int fs_cat_verb(Context& context, const std::string& ref, const std::string& path, const std::string& user) {
  HttpCall call;
  call.target = files_target(ref, "", path, user);
  auto done = context.raw(call, [](std::string_view part) { return sys::write_all(STDOUT_FILENO, part); });
  return done.ok() ? kOk : fail(done.error());
}

int fs_rm_verb(Context& context, const std::string& ref, const std::string& path, bool recursive, const std::string& user) {
  auto done = context.call("DELETE", files_target(ref, "", path, user) + (recursive ? "&recursive=true" : ""));
  return done.ok() ? kOk : fail(done.error());
}

int fs_mkdir_verb(Context& context, const std::string& ref, const std::string& path, bool parents, const std::string& user) {
  json::object body = {{"path", path}, {"parents", parents}};
  if (!user.empty()) body["user"] = user;
  auto done = context.post(sandbox_target(ref, "/files/mkdir"), body);
  return done.ok() ? kOk : fail(done.error());
}

}  // namespace dsec::cli
