// InjectedFault: one thing that a run breaks on its generation side on purpose
// (numerics.inject_fault), to show that the exactness check is able to fail. The training side does
// not know of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace grpo::generation {

enum class InjectedFault : uint8_t {
  kNone,
  kSplitK,                 // forward products may split their sums
  kStaleKv,                // keys and values of prompts survive a refit
  kFlippedRow,             // one weight row has the wrong sign after the refit was checked
  kBfloat16Logits,         // logits are rounded to bfloat16
  kKvTile,                 // decode walks narrower tiles of keys
  kBfloat16Rope,           // the RoPE table is rounded to bfloat16
  kTemperatureOnLogprobs,  // the inverse temperature multiplies log-probabilities, not logits
  kTopPOneSide,            // the filters' kept tokens are not handed to training
};

// As the config names them, "none" first.
std::vector<std::string> injected_fault_names();
// Throws InternalError for a name that is none of them.
InjectedFault injected_fault_named(const std::string& name);
// What is broken, in a few words for a warning; empty for none.
std::string describe(InjectedFault fault);

}  // namespace grpo::generation
