// Every decoder on every body: an error or a message, and what was decoded
// encodes to something that decodes to the same encoding.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "protocol/agent_messages.h"
#include "protocol/keeper_messages.h"

namespace {

using namespace dsec::protocol;

template <typename Message>
void check(std::string_view body) {
  const auto message = decode<Message>(body);
  if (!message.ok()) return;
  const std::string once = encode(*message);
  const auto again = decode<Message>(once);
  if (!again.ok() || encode(*again) != once) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  check<Hello>(body);
  check<HelloReply>(body);
  check<Ping>(body);
  check<ExecStart>(body);
  check<ExecStarted>(body);
  check<ExecFailed>(body);
  check<Output>(body);
  check<OutputAck>(body);
  check<Exited>(body);
  check<Stdin>(body);
  check<StdinAck>(body);
  check<Signal>(body);
  check<Resize>(body);
  check<Release>(body);
  check<SessionClose>(body);
  check<FileRequest>(body);
  check<FileReply>(body);
  check<FileData>(body);
  check<FileAck>(body);
  check<FileCancel>(body);
  check<ProtocolError>(body);
  (void)decode_keeper_request(body);
  (void)decode_keeper_reply(body);
  return 0;
}
