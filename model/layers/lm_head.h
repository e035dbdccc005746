// The LM head with its log-softmax, in chunks of rows: [all rows, vocabulary] never exists.
// R predicted rows, D model, V vocabulary, C rows a chunk. A float32 or bfloat16.
#pragma once

#include <span>
#include <vector>

#include "model/core/parameter_store.h"
#include "model/ops/log_softmax.h"
#include "model/ops/op_context.h"

namespace grpo::model {

// Of consecutive predicted rows, on the host.
struct LogprobValues {
  std::span<const float> processed;
  std::span<const float> unfiltered;
};
struct LogprobGradientValues {
  std::span<float> dprocessed;
  std::span<float> dunfiltered;
};

// The loss as the head sees it: log-probabilities in, their gradients out. Implemented by whoever
// trains, on the host.
class TokenLoss {
 public:
  virtual ~TokenLoss() = default;

  // Gradients of a row follow from that row alone: the head may ask chunk by chunk, ascending.
  virtual bool is_token_local() const = 0;
  // Rows [begin, end) of the batch's predicted rows; spans hold end - begin values, and every
  // gradient is written. When not token-local there is one call for all rows.
  virtual void evaluate(int64_t begin, int64_t end, const LogprobValues& logprobs,
                        const LogprobGradientValues& gradients) = 0;
};

// Filters this side's logits again and counts the rows whose kept tokens are not those that
// generation stored.
struct FilterCheck {
  ops::SamplingFilter filter;
  int64_t num_checked = 0;
  int64_t num_differing = 0;
};

struct HeadTargets {
  Tensor targets;            // [R] int32
  ops::KeptTokensView kept;  // [R]
  float inv_temperature;
  FilterCheck* filter_check;  // null: not checked
};

// Stateless but for its description.
class LmHead {
 public:
  LmHead(ParameterId weight, int64_t vocab_size, int64_t chunk_rows)
      : weight_(weight), vocab_size_(vocab_size), chunk_rows_(chunk_rows) {}

  void append_score_uses(std::vector<ParameterUse>& uses) const;
  // Single-pass when the loss is token-local, else two-pass (log-probabilities, then recomputed
  // logits).
  void append_train_uses(std::vector<ParameterUse>& uses, bool token_local) const;

  // Logits of all rows, for sampling.
  void logits(Pass& pass, const Tensor& out,  // [R, V] float32
              const Tensor& x,                // [R, D] A
              OpContext& ctx) const;

  void score(Pass& pass, const ops::TokenLogprobs& out,
             const Tensor& x,  // [R, D] A
             const HeadTargets& targets, OpContext& ctx) const;

  void train(Pass& pass, const Tensor& dx,  // [R, D] A, overwritten
             const Tensor& x,               // [R, D] A
             const HeadTargets& targets, TokenLoss& loss, OpContext& ctx) const;

 private:
  struct Chunk;
  // Of a chunk of rows, float32; and the gradients of its logits, which take the logits' own memory
  // where A is float32.
  struct LogitBuffers {
    Tensor logits;   // [C, V] float32
    Tensor dlogits;  // [C, V] A
  };
  LogitBuffers take_buffers(int64_t rows, DType dtype, OpContext& ctx) const;
  void check_filter(const HeadTargets& targets, const Chunk& chunk, OpContext& ctx) const;
  void chunk_logprobs(const Tensor& weight, const Tensor& x, const HeadTargets& targets,
                      const Chunk& chunk, OpContext& ctx) const;
  void chunk_backward(const Tensor& weight, const Tensor& dx, const Tensor& x,
                      const HeadTargets& targets, const Chunk& chunk, OpContext& ctx) const;
  void train_single_pass(Pass& pass, const Tensor& dx, const Tensor& x, const HeadTargets& targets,
                         TokenLoss& loss, OpContext& ctx) const;
  void train_two_pass(Pass& pass, const Tensor& dx, const Tensor& x, const HeadTargets& targets,
                      TokenLoss& loss, OpContext& ctx) const;

  ParameterId weight_;
  int64_t vocab_size_;
  int64_t chunk_rows_;
};

}  // namespace grpo::model
