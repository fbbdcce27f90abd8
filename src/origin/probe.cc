#include "origin/probe.h"

#include "base/random.h"
#include "origin/open_origin.h"

namespace dsec::origin {

namespace {

constexpr std::size_t kBytes = 300'000;

Result<void> expect_code(const Result<void>& result, ErrorCode code) {
  if (!result.ok() && result.error().code() == code) return {};
  return result.ok() ? Error(ErrorCode::kDataFault, "it was done") : result.error();
}

Result<void> read_ranges(Origin& origin, const ObjectName& name, const std::string& bytes, Deadline deadline) {
  DSEC_ASSIGN(const std::unique_ptr<Object> object, origin.open(name, deadline));
  if (object->size() != bytes.size()) return Error(ErrorCode::kDataFault, "it says another size");
  for (const auto& [offset, length] : std::vector<std::pair<std::size_t, std::size_t>>{{0, 1}, {4096, 4096}, {262'144, kBytes - 262'144}, {1, 99'999}, {0, kBytes}}) {
    DSEC_ASSIGN(const Buffer got, object->read(offset, length, deadline));
    if (got.view() != std::string_view(bytes).substr(offset, length)) return Error(ErrorCode::kDataFault, "other bytes came back");
  }
  return {};
}

}  // namespace

std::string_view to_string(Finding finding) {
  switch (finding) {
    case Finding::kHolds:
      return "holds";
    case Finding::kNoted:
      return "noted";
    case Finding::kRefused:
      return "refused";
  }
  return "refused";
}

ProbeRow probe_row(std::string name, const Result<void>& seen, Finding otherwise, std::string detail) {
  if (seen.ok()) return {std::move(name), Finding::kHolds, std::move(detail)};
  return {std::move(name), otherwise, seen.error().message()};
}

std::vector<ProbeRow> probe_origin(const std::string& url, Deadline deadline) {
  Result<std::unique_ptr<Origin>> opened = open_origin(url, deadline);
  if (!opened.ok()) return {probe_row("open", opened.error(), Finding::kRefused)};
  Origin& origin = **opened;
  SystemRandom random;
  const std::string bytes = random.bytes(kBytes);
  const Content content = Content::of_bytes(bytes);
  const ObjectName data{ObjectKind::kData, content.hex()};
  const ObjectName manifest{ObjectKind::kManifest, content.hex()};
  std::vector<ProbeRow> out;
  out.push_back(probe_row("publish", origin.publish(data, content, deadline), Finding::kRefused));
  if (out.back().finding == Finding::kRefused) return out;
  out.push_back(probe_row("read ranges", read_ranges(origin, data, bytes, deadline), Finding::kRefused));
  out.push_back(probe_row("publish again", origin.publish(data, content, deadline), Finding::kRefused, "equal bytes are success"));
  const Result<void> first = origin.publish(manifest, Content::of_bytes("first"), deadline);
  const Result<void> other = first.ok() ? expect_code(origin.publish(manifest, Content::of_bytes("other"), deadline), ErrorCode::kConflict) : first;
  out.push_back(probe_row("replace nothing", other, Finding::kRefused, "other bytes are a conflict"));
  const Result<void> gone = origin.remove(data, deadline);
  const Result<void> both = gone.ok() ? origin.remove(manifest, deadline) : gone;
  out.push_back(probe_row("remove", both, Finding::kNoted));
  return out;
}

Result<std::vector<ProbeRow>> probe_store(const std::string& address, const std::string& second, Deadline deadline) {
  const std::string url = without_form(address);  // what the store itself does is the question
  if (url.starts_with('/')) return probe_directory(url, second, deadline);
  if (!second.empty()) return invalid_argument("a second path is of a directory, not of a bucket");
  return probe_bucket(url, deadline);
}

}  // namespace dsec::origin
