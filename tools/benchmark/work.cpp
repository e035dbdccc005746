#include "tools/benchmark/work.h"

#include <algorithm>

#include "model/transformer_parameters.h"

namespace grpo::benchmark {

namespace {

constexpr double kFloatBytes = 4;

// (query, key) pairs of causal attention over equal sequences.
double causal_pairs(const PassShape& shape) {
  const auto length = static_cast<double>(shape.sequence_length);
  return static_cast<double>(shape.num_tokens) * (length + 1) / 2;
}

}  // namespace

double Ceilings::floor_seconds(const Work& work) const {
  return std::max(work.flops / flops_per_second, work.bytes / bytes_per_second);
}

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kHead:
      return "loss head";
    case Phase::kBackward:
      return "backward";
    case Phase::kOptimizer:
      return "optimizer";
  }
  return "";
}

double floor_seconds(const std::vector<OperatorWork>& operators, const Ceilings& ceilings) {
  double sum = 0;
  for (const OperatorWork& one : operators) sum += one.calls * ceilings.floor_seconds(one.work);
  return sum;
}

std::vector<OperatorWork> only(const std::vector<OperatorWork>& operators, Phase phase) {
  std::vector<OperatorWork> kept;
  for (const OperatorWork& one : operators) {
    if (one.phase == phase) kept.push_back(one);
  }
  return kept;
}

ModelWork::ModelWork(const model::ModelConfig& config, double activation_bytes)
    : config_(config), activation_bytes_(activation_bytes) {}

double ModelWork::num_parameters() const {
  return static_cast<double>(num_elements(model::make_transformer_parameters(config_, 0.0f).specs));
}

Work ModelWork::product(double rows, double out, double in, double out_bytes) const {
  return {.flops = 2 * rows * out * in,
          .bytes = activation_bytes_ * (rows * in + out * in) + out_bytes * rows * out};
}

// Added to a float32 gradient.
Work ModelWork::weight_gradient(double rows, double out, double in) const {
  return {.flops = 2 * rows * out * in,
          .bytes = activation_bytes_ * rows * (out + in) + 2 * kFloatBytes * out * in};
}

void ModelWork::append_layers_forward(std::vector<OperatorWork>& list, double rows, double pairs,
                                      double context_tokens) const {
  const auto layers = static_cast<double>(config_.num_layers);
  const auto d = static_cast<double>(config_.hidden_size);
  const auto f = static_cast<double>(config_.intermediate_size);
  const auto q = static_cast<double>(config_.q_size());
  const auto kv = static_cast<double>(config_.kv_size());
  const auto qkv = static_cast<double>(config_.qkv_size());
  const double a = activation_bytes_;
  const auto add = [&](const char* name, double calls, const Work& work) {
    list.push_back({name, Phase::kForward, calls, work});
  };
  add("embedding_forward", 1, moved(2 * rows * d));
  // The first norm is of the embeddings; every other one also adds up what it is of.
  add("rms_norm_forward", 1, moved(2 * rows * d));
  add("residual_rms_norm_forward", 2 * layers - 1, moved(4 * rows * d));
  add("qkv product", layers, product(rows, qkv, d, a));
  add("qkv_rope_forward", layers, moved(2 * rows * qkv));
  add("attention_forward", layers,
      {.flops = 4 * q * pairs, .bytes = a * (2 * rows * q + 2 * context_tokens * kv)});
  add("output product", layers, product(rows, d, q, a));
  add("gate+up product", layers, product(rows, 2 * f, d, a));
  add("swiglu_forward", layers, moved(3 * rows * f));
  add("down product", layers, product(rows, d, f, a));
}

void ModelWork::append_head_forward(std::vector<OperatorWork>& list, double rows,
                                    double chunk_rows) const {
  const auto d = static_cast<double>(config_.hidden_size);
  const auto v = static_cast<double>(config_.vocab_size);
  const auto add = [&](const char* name, double calls, const Work& work) {
    list.push_back({name, Phase::kHead, calls, work});
  };
  add("gather_rows", 1, moved(2 * rows * d));
  add("head product", rows / chunk_rows, product(chunk_rows, v, d, kFloatBytes));
  add("token_logprobs", rows / chunk_rows, {.flops = 0, .bytes = kFloatBytes * chunk_rows * v});
}

void ModelWork::append_layers_backward(std::vector<OperatorWork>& list,
                                       const PassShape& shape) const {
  const auto layers = static_cast<double>(config_.num_layers);
  const auto d = static_cast<double>(config_.hidden_size);
  const auto f = static_cast<double>(config_.intermediate_size);
  const auto q = static_cast<double>(config_.q_size());
  const auto kv = static_cast<double>(config_.kv_size());
  const auto qkv = static_cast<double>(config_.qkv_size());
  const auto v = static_cast<double>(config_.vocab_size);
  const auto t = static_cast<double>(shape.num_tokens);
  const auto add = [&](const char* name, double calls, const Work& work) {
    list.push_back({name, Phase::kBackward, calls, work});
  };
  const auto add_products = [&](const std::string& name, double out, double in) {
    list.push_back({name + " input gradient", Phase::kBackward, layers,
                    product(t, in, out, activation_bytes_)});
    list.push_back(
        {name + " weight gradient", Phase::kBackward, layers, weight_gradient(t, out, in)});
  };
  add("rms_norm_backward", 2 * layers + 1, moved(4 * t * d));
  add_products("down", d, f);
  add("swiglu_backward", layers, moved(5 * t * f));
  add_products("gate+up", 2 * f, d);
  add_products("output", d, q);
  // Scores again, then the gradients of weights, values, queries and keys.
  add("attention_backward", layers,
      {.flops = 10 * q * causal_pairs(shape), .bytes = activation_bytes_ * t * (4 * q + 4 * kv)});
  add("qkv_rope_backward", layers, moved(2 * t * qkv));
  add("qkv bias gradient", layers, moved(t * qkv));
  add_products("qkv", qkv, d);
  add("embedding_backward", 1,
      {.flops = 0, .bytes = activation_bytes_ * t * d + 2 * kFloatBytes * std::min(t, v) * d});
}

std::vector<OperatorWork> ModelWork::scoring_pass(const PassShape& shape) const {
  const auto t = static_cast<double>(shape.num_tokens);
  const auto rows = static_cast<double>(shape.num_predicted);
  std::vector<OperatorWork> list;
  append_layers_forward(list, t, causal_pairs(shape), t);
  list.push_back(
      {"final rms_norm", Phase::kHead, 1, moved(4 * t * static_cast<double>(config_.hidden_size))});
  append_head_forward(list, rows, std::min(rows, static_cast<double>(shape.head_chunk_rows)));
  return list;
}

std::vector<OperatorWork> ModelWork::training_pass(const PassShape& shape) const {
  const auto d = static_cast<double>(config_.hidden_size);
  const auto v = static_cast<double>(config_.vocab_size);
  const auto t = static_cast<double>(shape.num_tokens);
  const auto rows = static_cast<double>(shape.num_predicted);
  const double chunk = std::min(rows, static_cast<double>(shape.head_chunk_rows));
  std::vector<OperatorWork> list = scoring_pass(shape);
  const auto add = [&](const char* name, double calls, const Work& work) {
    list.push_back({name, Phase::kHead, calls, work});
  };
  // The gradient of the logits in the activations' dtype: no product needs more.
  add("token_logprobs_backward", rows / chunk,
      {.flops = 0, .bytes = (kFloatBytes + activation_bytes_) * chunk * v});
  add("head input gradient", rows / chunk, product(chunk, d, v, activation_bytes_));
  add("head weight gradient", rows / chunk, weight_gradient(chunk, v, d));
  add("scatter_rows", 1, moved((rows + t) * d));
  append_layers_backward(list, shape);
  return list;
}

std::vector<OperatorWork> ModelWork::optimizer_step() const {
  const double n = num_parameters();
  // AdamW reads and writes master and two moments, reads the gradient and writes the weight.
  return {{"zero_gradients", Phase::kOptimizer, 1, {.flops = 0, .bytes = kFloatBytes * n}},
          {"square_sum", Phase::kOptimizer, 1, {.flops = 0, .bytes = kFloatBytes * n}},
          {"adamw_step",
           Phase::kOptimizer,
           1,
           {.flops = 0, .bytes = (7 * kFloatBytes + activation_bytes_) * n}}};
}

std::vector<OperatorWork> ModelWork::cached_pass(const CachedShape& shape) const {
  const auto d = static_cast<double>(config_.hidden_size);
  std::vector<OperatorWork> list;
  append_layers_forward(list, shape.num_rows, shape.num_pairs, shape.context_tokens);
  list.push_back({"residual_add", Phase::kHead, 1, moved(3 * shape.num_rows * d)});
  list.push_back({"final rms_norm", Phase::kHead, 1, moved(2 * shape.num_logit_rows * d)});
  list.push_back({"gather_rows", Phase::kHead, 1, moved(2 * shape.num_logit_rows * d)});
  list.push_back(
      {"head product", Phase::kHead, 1,
       product(shape.num_logit_rows, static_cast<double>(config_.vocab_size), d, kFloatBytes)});
  return list;
}

std::vector<OperatorWork> ModelWork::sampling(double num_rows) const {
  return {
      {"sample_tokens",
       Phase::kHead,
       1,
       {.flops = 0, .bytes = kFloatBytes * num_rows * static_cast<double>(config_.vocab_size)}}};
}

Work ModelWork::refit() const {
  return {.flops = 0, .bytes = 2 * activation_bytes_ * num_parameters()};
}

}  // namespace grpo::benchmark
