// Draws for the sampler's tests.
#pragma once

#include <cstdint>
#include <vector>

#include "model/ops/sampler.h"

namespace grpo::ops {

inline std::vector<TokenDraw> one_draw_a_row(const std::vector<double>& uniforms) {
  std::vector<TokenDraw> draws;
  for (const double uniform : uniforms) {
    draws.push_back({.uniform = uniform, .row = static_cast<int32_t>(draws.size())});
  }
  return draws;
}

}  // namespace grpo::ops
