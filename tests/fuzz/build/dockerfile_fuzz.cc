// A Dockerfile from anywhere: read, and every instruction resolved.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "build/dockerfile.h"
#include "build/step.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const dsec::Result<dsec::build::Plan> plan = dsec::build::parse_dockerfile(text);
  if (!plan.ok()) return 0;
  const auto globals = dsec::build::global_args(*plan, {{"GIVEN", "value"}});
  if (!globals.ok()) return 0;
  for (const dsec::build::Stage& stage : plan->stages) {
    (void)dsec::build::expand_from(stage.base, *globals, plan->escape).ok();
    dsec::build::StageState state;
    state.escape = plan->escape;
    state.offered = *globals;
    for (const dsec::build::Instruction& instruction : stage.instructions) {
      (void)instruction.summary();
      if (!dsec::build::resolve(instruction, state).ok()) break;
    }
  }
  return 0;
}
