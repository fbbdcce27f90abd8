// Texts that the payload wrote and aether reads: account files and shell dumps.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "agent/accounts.h"
#include "agent/shell_session.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsec::agent;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto dump = parse_shell_dump(text);
  if (dump && !dump->cwd.starts_with('/')) std::abort();
  for (const char* user : {"", "nobody", "1000", "nobody:tty"}) {
    const auto account = find_account(user, text, text);
    if (account.ok() && (account->home.empty() || account->home[0] != '/')) std::abort();
  }
  return 0;
}
