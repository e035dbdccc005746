#include "tools/benchmark/kernels.h"

#include <cstdio>

#include "model/ops/attention.h"
#include "model/ops/embedding.h"
#include "model/ops/linear.h"
#include "model/ops/log_softmax.h"
#include "model/ops/optimizer_step.h"
#include "model/ops/reduce.h"
#include "model/ops/rms_norm.h"
#include "model/ops/rope.h"
#include "model/ops/rows.h"
#include "model/ops/swiglu.h"
#include "rl/loop/sequence_scorer.h"
#include "tools/benchmark/operands.h"
#include "tools/benchmark/phases.h"

namespace grpo::benchmark {

namespace {

using Call = std::function<void()>;
using MakeCall = std::function<Call(Operands&)>;

constexpr float kWeightDeviation = 0.02f;
constexpr float kEpsilon = 1e-6f;
constexpr size_t kCacheBytes = size_t{256} << 20;  // more than any device's
constexpr size_t kMostSets = 8;
constexpr double kSecondsAMeasurement = 0.03;
constexpr int64_t kMostRounds = 100;

// The operators of a step by their names in ModelWork. T tokens, R predicted rows, C rows of
// logits, D model, F feed-forward, H query heads, G key/value heads, K head dim, V vocabulary.
class StepOperators {
 public:
  explicit StepOperators(Rig& rig)
      : ctx_(rig.ctx()),
        config_(rig.options().model),
        shape_(pass_shape(rig.options())),
        dtype_(rig.models().policy_store().dtype()),
        sequences_(rig.make_rollout(shape_.num_tokens / shape_.sequence_length)),
        batch_(pack(sequences_, rig.allocator())),
        rope_table_(rig.allocator(), "rope_table", DType::kFloat32,
                    {batch_.max_length, config_.head_dim}),
        t_(shape_.num_tokens),
        chunk_(std::min(shape_.num_predicted, shape_.head_chunk_rows)),
        d_(config_.hidden_size),
        f_(config_.intermediate_size),
        v_(config_.vocab_size) {
    ops::fill_rope_table(rope_table_, config_.rope_theta);
    add_row_operators();
    add_attention();
    add_products("qkv", config_.qkv_size(), d_, true);
    add_products("output", d_, config_.q_size(), false);
    add_products("gate+up", 2 * f_, d_, false);
    add_products("down", d_, f_, false);
    add_head();
    add_embedding();
    add_optimizer();
  }

  const MakeCall& find(const std::string& name) const {
    const auto found = calls_.find(name);
    CHECK(found != calls_.end(), "no operator '{}'", name);
    return found->second;
  }

 private:
  static model::PackedBatch pack(const std::vector<rl::RolloutSequence>& sequences,
                                 Allocator& allocator) {
    std::vector<const rl::RolloutSequence*> members;
    for (const rl::RolloutSequence& sequence : sequences) members.push_back(&sequence);
    return rl::pack_rollout(members, true, allocator);
  }

  void add_row_operators() {
    calls_["rms_norm_forward"] = [this](Operands& o) -> Call {
      const Tensor x = o.random(dtype_, {t_, d_});
      const Tensor out = o.zeros(dtype_, {t_, d_});
      const Tensor rstd = o.zeros(DType::kFloat32, {t_});
      const Tensor weight = o.random(dtype_, {d_});
      return [=, this] { ops::rms_norm_forward(out, rstd, x, weight, kEpsilon, ctx_); };
    };
    calls_["residual_rms_norm_forward"] = [this](Operands& o) -> Call {
      const Tensor x = o.random(dtype_, {t_, d_});
      const Tensor addend = o.random(dtype_, {t_, d_});
      const ops::NormedSum out{.sum = o.zeros(dtype_, {t_, d_}),
                               .normed = o.zeros(dtype_, {t_, d_}),
                               .rstd = o.zeros(DType::kFloat32, {t_})};
      const Tensor weight = o.random(dtype_, {d_});
      return [=, this] { ops::residual_rms_norm_forward(out, x, addend, weight, kEpsilon, ctx_); };
    };
    calls_["final rms_norm"] = calls_["residual_rms_norm_forward"];
    calls_["rms_norm_backward"] = [this](Operands& o) -> Call {
      const Tensor x = o.random(dtype_, {t_, d_});
      const Tensor dout = o.random(dtype_, {t_, d_});
      const Tensor dx = o.random(dtype_, {t_, d_});
      const Tensor rstd = o.zeros(DType::kFloat32, {t_});
      const Tensor weight = o.random(dtype_, {d_});
      const Tensor dweight = o.zeros(DType::kFloat32, {d_});
      ops::rms_norm_forward(o.zeros(dtype_, {t_, d_}), rstd, x, weight, kEpsilon, ctx_);
      return [=, this] {
        ops::rms_norm_backward(
            {.dx = dx, .accumulate_dx = true, .dweight = dweight, .accumulate_dweight = true}, dout,
            x, weight, rstd, ctx_);
      };
    };
    calls_["swiglu_forward"] = [this](Operands& o) -> Call {
      const Tensor gate_up = o.random(dtype_, {t_, 2 * f_});
      const Tensor out = o.zeros(dtype_, {t_, f_});
      return [=, this] { ops::swiglu_forward(out, gate_up, ctx_); };
    };
    calls_["swiglu_backward"] = [this](Operands& o) -> Call {
      const Tensor gate_up = o.random(dtype_, {t_, 2 * f_});
      const Tensor dout = o.random(dtype_, {t_, f_});
      const Tensor dgate_up = o.zeros(dtype_, {t_, 2 * f_});
      return [=, this] { ops::swiglu_backward(dgate_up, dout, gate_up, ctx_); };
    };
    calls_["gather_rows"] = [this](Operands& o) -> Call {
      const Tensor x = o.random(dtype_, {t_, d_});
      const Tensor out = o.zeros(dtype_, {batch_.num_predicted(), d_});
      return [=, this] { ops::gather_rows(out, x, batch_.predicted_rows, ctx_); };
    };
    calls_["scatter_rows"] = [this](Operands& o) -> Call {
      const Tensor x = o.random(dtype_, {batch_.num_predicted(), d_});
      const Tensor out = o.zeros(dtype_, {t_, d_});
      return [=, this] { ops::scatter_rows(out, x, batch_.predicted_rows, ctx_); };
    };
  }

  // Queries, keys and values as a layer has them.
  struct Heads {
    Tensor q;
    KvView kv;
  };

  Heads heads(Operands& o) const {
    const Shape kv_shape{t_, config_.num_kv_heads, config_.head_dim};
    return {.q = o.random(dtype_, {t_, config_.num_heads, config_.head_dim}),
            .kv = {.keys = o.random(dtype_, kv_shape),
                   .values = o.random(dtype_, kv_shape),
                   .query_offsets = batch_.query_offsets,
                   .context_lengths = batch_.context_lengths,
                   .page_first_slot = batch_.page_first_slot,
                   .page_size_tokens = batch_.max_length,
                   .max_query_rows = batch_.max_length,
                   .max_context_tokens = batch_.max_length}};
  }

  float attention_scale() const {
    return model::LayerShape{.hidden_size = d_,
                             .num_heads = config_.num_heads,
                             .num_kv_heads = config_.num_kv_heads,
                             .head_dim = config_.head_dim,
                             .intermediate_size = f_,
                             .rms_norm_eps = kEpsilon}
        .attention_scale();
  }

  void add_attention() {
    calls_["qkv_rope_forward"] = [this](Operands& o) -> Call {
      const Tensor qkv = o.random(dtype_, {t_, config_.qkv_size()});
      const Heads to = heads(o);
      return [=, this] {
        ops::qkv_rope_forward(to.q, to.kv.keys, to.kv.values, qkv, batch_.positions, rope_table_,
                              ctx_);
      };
    };
    calls_["qkv_rope_backward"] = [this](Operands& o) -> Call {
      const Tensor dqkv = o.zeros(dtype_, {t_, config_.qkv_size()});
      const Heads from = heads(o);
      return [=, this] {
        ops::qkv_rope_backward(dqkv, from.q, from.kv.keys, from.kv.values, batch_.positions,
                               rope_table_, ctx_);
      };
    };
    calls_["attention_forward"] = [this](Operands& o) -> Call {
      const Heads in = heads(o);
      const Tensor out = o.zeros(dtype_, in.q.shape());
      const Tensor lse = o.zeros(DType::kFloat32, {t_, config_.num_heads});
      return [=, this] { ops::attention_forward(out, lse, in.q, in.kv, attention_scale(), ctx_); };
    };
    calls_["attention_backward"] = [this](Operands& o) -> Call {
      const Heads in = heads(o);
      const Tensor out = o.zeros(dtype_, in.q.shape());
      const Tensor lse = o.zeros(DType::kFloat32, {t_, config_.num_heads});
      const Tensor dout = o.random(dtype_, in.q.shape());
      const ops::AttentionGradients to{.dq = o.zeros(dtype_, in.q.shape()),
                                       .dkeys = o.zeros(dtype_, in.kv.keys.shape()),
                                       .dvalues = o.zeros(dtype_, in.kv.keys.shape())};
      ops::attention_forward(out, lse, in.q, in.kv, attention_scale(), ctx_);
      return [=, this] {
        ops::attention_backward(to, dout, {.q = in.q, .out = out, .lse = lse}, in.kv,
                                attention_scale(), ctx_);
      };
    };
    calls_["qkv bias gradient"] = [this](Operands& o) -> Call {
      const Tensor dout = o.random(dtype_, {t_, config_.qkv_size()});
      const Tensor dbias = o.zeros(DType::kFloat32, {config_.qkv_size()});
      return [=, this] { ops::linear_backward_bias(dbias, dout, true, ctx_); };
    };
  }

  void add_products(const std::string& name, int64_t out_size, int64_t in_size, bool has_bias) {
    calls_[name + " product"] = [=, this](Operands& o) -> Call {
      const Tensor x = o.random(dtype_, {t_, in_size});
      const Tensor weight = o.random(dtype_, {out_size, in_size}, kWeightDeviation);
      const Tensor bias = has_bias ? o.random(dtype_, {out_size}) : Tensor();
      const Tensor out = o.zeros(dtype_, {t_, out_size});
      return [=, this] { ops::linear_forward(out, x, weight, bias, ctx_); };
    };
    add_product_gradients(name, {t_, out_size, in_size});
  }

  struct ProductSizes {
    int64_t rows, out, in;
  };

  void add_product_gradients(const std::string& name, const ProductSizes& s) {
    calls_[name + " input gradient"] = [=, this](Operands& o) -> Call {
      const Tensor dout = o.random(dtype_, {s.rows, s.out});
      const Tensor weight = o.random(dtype_, {s.out, s.in}, kWeightDeviation);
      const Tensor dx = o.zeros(dtype_, {s.rows, s.in});
      return [=, this] { ops::linear_backward_input(dx, dout, weight, false, ctx_); };
    };
    calls_[name + " weight gradient"] = [=, this](Operands& o) -> Call {
      const Tensor dout = o.random(dtype_, {s.rows, s.out});
      const Tensor x = o.random(dtype_, {s.rows, s.in});
      const Tensor dweight = o.zeros(DType::kFloat32, {s.out, s.in});
      return [=, this] { ops::linear_backward_weight(dweight, dout, x, true, ctx_); };
    };
  }

  void add_head() {
    calls_["head product"] = [this](Operands& o) -> Call {
      const Tensor x = o.random(dtype_, {chunk_, d_});
      const Tensor weight = o.random(dtype_, {v_, d_}, kWeightDeviation);
      const Tensor logits = o.zeros(DType::kFloat32, {chunk_, v_});
      return [=, this] { ops::linear_forward(logits, x, weight, Tensor(), ctx_); };
    };
    calls_["token_logprobs"] = [this](Operands& o) -> Call {
      const Tensor logits = o.random(DType::kFloat32, {chunk_, v_});
      const ops::TokenLogprobs out{.processed = o.zeros(DType::kFloat32, {chunk_}),
                                   .unfiltered = o.zeros(DType::kFloat32, {chunk_})};
      return [=, this] {
        ops::token_logprobs(out, logits, batch_.targets.rows(0, chunk_), {}, 1.0f, ctx_);
      };
    };
    calls_["token_logprobs_backward"] = [this](Operands& o) -> Call {
      const Tensor logits = o.random(DType::kFloat32, {chunk_, v_});
      const Tensor dlogits = o.zeros(dtype_, {chunk_, v_});
      const Tensor targets = batch_.targets.rows(0, chunk_);
      const ops::TokenLogprobs found{.processed = o.zeros(DType::kFloat32, {chunk_}),
                                     .unfiltered = o.zeros(DType::kFloat32, {chunk_}),
                                     .sums = o.zeros(DType::kUint8, {chunk_, ops::kRowSumsBytes})};
      const ops::LogprobGradients from{.dprocessed = o.random(DType::kFloat32, {chunk_}),
                                       .dunfiltered = o.random(DType::kFloat32, {chunk_}),
                                       .sums = found.sums};
      ops::token_logprobs(found, logits, targets, {}, 1.0f, ctx_);
      return [=, this] {
        ops::token_logprobs_backward(dlogits, logits, from, targets, {}, 1.0f, ctx_);
      };
    };
    add_product_gradients("head", {chunk_, v_, d_});
  }

  void add_embedding() {
    calls_["embedding_forward"] = [this](Operands& o) -> Call {
      const Tensor weight = o.random(dtype_, {v_, d_}, kWeightDeviation);
      const Tensor out = o.zeros(dtype_, {t_, d_});
      return [=, this] { ops::embedding_forward(out, batch_.tokens, weight, ctx_); };
    };
    calls_["embedding_backward"] = [this](Operands& o) -> Call {
      const Tensor dout = o.random(dtype_, {t_, d_});
      const Tensor dweight = o.zeros(DType::kFloat32, {v_, d_});
      return [=, this] { ops::embedding_backward(dweight, dout, batch_.tokens, true, ctx_); };
    };
  }

  void add_optimizer() {
    const int64_t n = num_elements(model::make_transformer_parameters(config_, 0.0f).specs);
    calls_["zero_gradients"] = [this, n](Operands& o) -> Call {
      const Tensor gradient = o.zeros(DType::kFloat32, {n});
      return [=, this] { fill_zero(gradient, ctx_.stream); };
    };
    calls_["square_sum"] = [this, n](Operands& o) -> Call {
      const std::vector<Tensor> gradient{o.random(DType::kFloat32, {n})};
      return [=, this] {
        float largest = 0;
        ops::largest_magnitudes({&largest, 1}, gradient, ctx_);
        ops::square_sum(gradient, ops::SquareGrid(largest), ctx_);
      };
    };
    calls_["adamw_step"] = [this, n](Operands& o) -> Call {
      const ops::AdamWState state{.master = o.random(DType::kFloat32, {n}, kWeightDeviation),
                                  .m = o.zeros(DType::kFloat32, {n}),
                                  .v = o.zeros(DType::kFloat32, {n})};
      const Tensor weight = o.zeros(dtype_, {n});
      const Tensor gradient = o.random(DType::kFloat32, {n});
      return [=, this] {
        ops::adamw_step(state, weight, gradient,
                        {.learning_rate = 1e-6,
                         .beta1 = 0.9,
                         .beta2 = 0.999,
                         .epsilon = 1e-8,
                         .weight_decay = 0.01,
                         .step = 1,
                         .gradient_scale = 1.0},
                        ctx_);
      };
    };
  }

  OpContext& ctx_;
  model::ModelConfig config_;
  PassShape shape_;
  DType dtype_;
  std::vector<rl::RolloutSequence> sequences_;
  model::PackedBatch batch_;
  OwnedTensor rope_table_;  // [positions, K] float32
  int64_t t_, chunk_, d_, f_, v_;
  std::map<std::string, MakeCall> calls_;
};

double seconds_per_call(Rig& rig, RandomNumbers& numbers, const MakeCall& make_call) {
  std::vector<Operands> operands;
  std::vector<Call> calls;
  do {
    calls.push_back(make_call(operands.emplace_back(numbers)));
  } while (operands.size() < kMostSets &&
           operands.size() * operands.front().size_bytes() < kCacheBytes);
  const auto run_all = [&] {
    for (const Call& call : calls) call();
  };
  run_all();
  const double once = rig.seconds(run_all);
  const auto rounds = static_cast<int64_t>(
      std::clamp(kSecondsAMeasurement / once, 1.0, static_cast<double>(kMostRounds)));
  std::vector<double> seconds;
  for (int64_t i = 0; i < rig.options().repeats; ++i) {
    seconds.push_back(rig.seconds([&] {
      for (int64_t r = 0; r < rounds; ++r) run_all();
    }));
  }
  return median(seconds) / static_cast<double>(rounds * std::ssize(calls));
}

bool is_product(const OperatorWork& operation) {
  return operation.name.ends_with(" product") || operation.name.ends_with(" input gradient") ||
         operation.name.ends_with(" weight gradient");
}

// Of one optimizer step.
std::vector<OperatorWork> step_operators(const Rig& rig) {
  const Options& options = rig.options();
  const ModelWork work(options.model, rig.activation_bytes());
  std::vector<OperatorWork> list = work.training_pass(pass_shape(options));
  for (OperatorWork& one : list) one.calls *= static_cast<double>(options.micro_batches);
  for (const OperatorWork& one : work.optimizer_step()) list.push_back(one);
  return list;
}

}  // namespace

std::vector<KernelRow> measure_kernels(Rig& rig) {
  rig.allocator().set_phase("operators");
  const StepOperators operators(rig);
  RandomNumbers numbers(rig.allocator());
  std::vector<KernelRow> rows;
  for (const OperatorWork& one : step_operators(rig)) {
    rows.push_back({one, seconds_per_call(rig, numbers, operators.find(one.name))});
    std::fprintf(stderr, "  %s: %.1f us\n", one.name.c_str(), 1e6 * rows.back().seconds);
  }
  sort_kernels(rows);
  return rows;
}

std::vector<ProductRow> measure_products(Rig& rig) {
  rig.allocator().set_phase("products");
  const StepOperators operators(rig);
  RandomNumbers numbers(rig.allocator());
  std::vector<ProductRow> rows;
  for (const OperatorWork& one : step_operators(rig)) {
    if (!is_product(one)) continue;
    for (int rank = 0; rank < rig.options().product_candidates; ++rank) {
      rig.matrix_library().set_candidate_rank(rank);
      const double seconds = seconds_per_call(rig, numbers, operators.find(one.name));
      const std::string algorithm = rig.matrix_library().describe_latest();
      if (rank > 0 && algorithm == rows.back().algorithm) break;  // there are no more
      rows.push_back({one, rank, seconds, algorithm});
    }
  }
  rig.matrix_library().set_candidate_rank(0);
  return rows;
}

}  // namespace grpo::benchmark
