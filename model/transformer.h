// Transformer: a Qwen2-style decoder over a ParameterStore. Single-device code: it sees whole
// weights and never names a process group. One forward serves training, scoring, prefill and
// decode.
#pragma once

#include <memory>
#include <vector>

#include "model/core/parameter_store.h"
#include "model/core/use_schedule.h"
#include "model/files/model_config.h"
#include "model/layers/attention_layer.h"
#include "model/layers/lm_head.h"
#include "model/layers/mlp_layer.h"
#include "model/packed_batch.h"
#include "model/transformer_parameters.h"

namespace grpo::model {

// Rows for generation: queries over a paged cache. N rows, S sequences, L layers.
struct CachedRows {
  Tensor tokens;             // [N] int32
  Tensor positions;          // [N, 2] int32: position, cache slot
  KvView kv;                 // keys and values unset; the rest describes the N rows
  std::vector<Tensor> keys;  // [L] of [num_slots, G, K]
  std::vector<Tensor> values;
  Tensor logit_rows;  // [M] int32: rows whose logits are wanted
};

struct TransformerOptions {
  int64_t max_positions;    // rows of the RoPE table
  int64_t head_chunk_rows;  // rows of logits that exist at once
};

// Owned by whoever owns the store; one thread. The store outlives it.
class Transformer {
 public:
  Transformer(const ModelConfig& config, const TransformerParameters& parameters,
              ParameterStore& store, const TransformerOptions& options, Allocator& allocator);

  const ModelConfig& config() const { return config_; }
  ParameterStore& store() { return store_; }
  const Tensor& rope_table() const { return rope_table_.view(); }  // [max_positions, K] float32

  // Log-probabilities of the batch's targets; a forward-only pass. R predicted rows. `cut_check`
  // may be null.
  void score(const ops::TokenLogprobs& out,  // [R] float32 each
             const PackedBatch& batch, float inv_temperature, FilterCheck* filter_check,
             OpContext& ctx);

  // Forward, loss, backward; gradients add up in the store. `cut_check` may be null.
  void train(const PackedBatch& batch, float inv_temperature, TokenLoss& loss,
             FilterCheck* filter_check, OpContext& ctx);

  // Writes K and V of all rows into the cache; logits of logit_rows.
  void forward_cached(const Tensor& logits,  // [M, V] float32
                      const CachedRows& rows, OpContext& ctx);

  const UseSchedule& score_schedule() const { return score_schedule_; }
  const UseSchedule& train_schedule(bool token_local) const {
    return token_local ? train_single_pass_schedule_ : train_two_pass_schedule_;
  }

 private:
  struct SavedLayer {
    AttentionActivations attention;
    MlpActivations mlp;
    KvView kv;
  };

  UseSchedule make_score_schedule() const;
  UseSchedule make_train_schedule(bool token_local) const;
  ResidualStream embed(Pass& pass, const Tensor& tokens, OpContext& ctx);
  KvView packed_kv(const PackedBatch& batch, OpContext& ctx) const;
  void final_norm(Pass& pass, ResidualStream& stream, const Tensor& normed, const Tensor& rstd,
                  OpContext& ctx);
  Tensor train_head(Pass& pass, const PackedBatch& batch, ResidualStream stream,
                    const HeadTargets& targets, TokenLoss& loss, OpContext& ctx);

  ModelConfig config_;
  TransformerParameters parameters_;
  ParameterStore& store_;
  OwnedTensor rope_table_;  // [max_positions, K] float32
  std::vector<AttentionLayer> attention_;
  std::vector<MlpLayer> mlp_;
  LmHead head_;
  UseSchedule score_schedule_;
  UseSchedule train_single_pass_schedule_;
  UseSchedule train_two_pass_schedule_;
};

}  // namespace grpo::model
