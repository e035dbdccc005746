#include "rl/models/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "model/ops/optimizer_step.h"
#include "model/ops/reduce.h"
#include "parallel/comm/host_collectives.h"

namespace grpo::rl {

namespace {

// NaN and infinity stay.
float larger_or_not_finite(float a, float b) { return !std::isfinite(a) || b < a ? a : b; }

}  // namespace

Optimizer::Optimizer(const OptimizerConfig& config, parallel::ShardedParameterStore& store,
                     Allocator& allocator)
    : config_(config), store_(store) {
  const Shape shape{store.num_owned_elements()};
  master_ = OwnedTensor(allocator, "optimizer/master", DType::kFloat32, shape);
  if (config_.name == "adamw") {
    m_ = OwnedTensor(allocator, "optimizer/moments", DType::kFloat32, shape);
    v_ = OwnedTensor(allocator, "optimizer/moments", DType::kFloat32, shape);
  }
  Workspace workspace(allocator);
  OpContext ctx{allocator.device(), Stream::none(), workspace};
  reload_masters(ctx);
}

Tensor Optimizer::state(const OwnedTensor& all, const parallel::OwnedSpan& span) const {
  return all.view().rows(span.state_offset, span.num_elements);
}

void Optimizer::reload_masters(OpContext& ctx) {
  for (const parallel::OwnedSpan& span : store_.owned_spans()) {
    ops::convert(state(master_, span), span.weight, ctx);
  }
}

std::vector<parallel::StateArray> Optimizer::state_arrays() const {
  std::vector<parallel::StateArray> arrays{{.prefix = "master", .values = master_}};
  if (!m_.is_empty()) {
    arrays.push_back({.prefix = "m", .values = m_});
    arrays.push_back({.prefix = "v", .values = v_});
  }
  return arrays;
}

double Optimizer::gradient_norm(OpContext& ctx) const {
  Communicator& world = store_.groups().world.communicator();
  const SpanValues gradient_of = [](const auto& span) { return span.gradient; };
  float own_largest = 0;
  for (const float largest : largest_magnitudes(gradient_of, ctx)) {
    own_largest = larger_or_not_finite(own_largest, largest);
  }
  float largest = 0;
  for (const std::vector<float>& of_rank :
       parallel::all_gather_vector(world, std::vector<float>{own_largest})) {
    largest = larger_or_not_finite(largest, of_rank[0]);
  }
  if (!std::isfinite(largest)) throw_if_any(first_not_finite(gradient_of, ctx), "the gradient");
  std::vector<Tensor> counted;
  for (const parallel::OwnedSpan& span : store_.owned_spans()) {
    if (span.counts_in_norm) counted.push_back(span.gradient);
  }
  const ops::SquareGrid grid(largest);
  ops::FixedPoint sum = 0;
  for (const auto& of_rank : parallel::all_gather_vector(
           world, std::vector<ops::FixedPoint>{ops::square_sum(counted, grid, ctx)})) {
    sum += of_rank[0];
  }
  return std::sqrt(grid.value(sum));
}

std::vector<float> Optimizer::largest_magnitudes(const SpanValues& values, OpContext& ctx) const {
  std::vector<Tensor> arrays;
  for (const parallel::OwnedSpan& span : store_.owned_spans()) arrays.push_back(values(span));
  std::vector<float> largest(arrays.size());
  ops::largest_magnitudes(largest, arrays, ctx);
  return largest;
}

std::string Optimizer::first_not_finite(const SpanValues& values, OpContext& ctx) const {
  const std::vector<float> largest = largest_magnitudes(values, ctx);
  for (size_t i = 0; i < largest.size(); ++i) {
    if (std::isfinite(largest[i])) continue;
    const parallel::OwnedSpan& span = store_.owned_spans()[i];
    const ParameterSpec& spec = store_.specs()[static_cast<size_t>(span.parameter)];
    return spec.parts[static_cast<size_t>(span.part)].name;
  }
  return "";
}

void Optimizer::throw_if_any(const std::string& own_name, const char* what) const {
  Communicator& world = store_.groups().world.communicator();
  const auto names = parallel::all_gather_bytes(world, std::as_bytes(std::span(own_name)));
  for (size_t rank = 0; rank < names.size(); ++rank) {
    if (names[rank].empty()) continue;
    throw NonFiniteError(fmt::format(
        "{} of '{}' is not finite (first seen on rank {})", what,
        std::string(reinterpret_cast<const char*>(names[rank].data()), names[rank].size()), rank));
  }
}

void Optimizer::step(double learning_rate, double gradient_norm, double max_norm, OpContext& ctx) {
  const double scale = max_norm > 0 ? std::min(1.0, max_norm / (gradient_norm + 1e-6)) : 1.0;
  ++num_steps_;
  for (const parallel::OwnedSpan& span : store_.owned_spans()) {
    const bool decays = store_.specs()[static_cast<size_t>(span.parameter)].decays;
    const double decay = decays ? config_.kwargs.weight_decay : 0.0;
    if (config_.name == "adamw") {
      ops::adamw_step({.master = state(master_, span), .m = state(m_, span), .v = state(v_, span)},
                      span.weight, span.gradient,
                      {.learning_rate = learning_rate,
                       .beta1 = config_.kwargs.betas[0],
                       .beta2 = config_.kwargs.betas[1],
                       .epsilon = config_.kwargs.eps,
                       .weight_decay = decay,
                       .step = num_steps_,
                       .gradient_scale = scale},
                      ctx);
    } else {
      ops::sgd_step(
          state(master_, span), span.weight, span.gradient,
          {.learning_rate = learning_rate, .weight_decay = decay, .gradient_scale = scale}, ctx);
    }
  }
  throw_if_any(first_not_finite([&](const auto& span) { return state(master_, span); }, ctx),
               "after the update the weight");
  store_.gather_updated_weights();
}

}  // namespace grpo::rl
