#include "generation/injected_fault.h"

#include <array>

#include "model/core/errors.h"

namespace grpo::generation {

namespace {

struct FaultText {
  const char* name;
  const char* effect;
};

// In the enum's order.
constexpr std::array kFaults{
    FaultText{"none", ""},
    FaultText{"split_k", "generation's products split their sums where they can"},
    FaultText{"stale_kv", "generation keeps keys and values of its first prompts over refits"},
    FaultText{"flipped_row",
              "after each refit one row of the last layer's down projection changes its sign"},
    FaultText{"bf16_logits", "generation rounds its logits to bfloat16"},
    FaultText{"kv_tile", "decode walks keys in tiles of another width"},
    FaultText{"bf16_rope", "generation rounds its RoPE table to bfloat16"},
    FaultText{"temperature_on_logprobs",
              "generation applies the temperature to log-probabilities instead of logits"},
    FaultText{"top_p_one_side", "generation filters tokens (top-k, top-p), training does not"},
};

}  // namespace

std::vector<std::string> injected_fault_names() {
  std::vector<std::string> names;
  names.reserve(kFaults.size());
  for (const FaultText& fault : kFaults) names.emplace_back(fault.name);
  return names;
}

InjectedFault injected_fault_named(const std::string& name) {
  for (size_t i = 0; i < kFaults.size(); ++i) {
    if (name == kFaults[i].name) return static_cast<InjectedFault>(i);
  }
  throw InternalError(fmt::format("'{}' is no injected fault", name));
}

std::string describe(InjectedFault fault) { return kFaults[static_cast<size_t>(fault)].effect; }

}  // namespace grpo::generation
