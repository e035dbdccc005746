// Weights into and out of a sharded store: random initialisation, Hugging Face directories.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model/files/safetensors.h"
#include "parallel/store/sharded_parameter_store.h"

namespace grpo::parallel {

// Fills this rank's shards from counter-based draws keyed by (seed, tensor name, logical row,
// logical column): the same model on every layout, bit for bit. Padding stays zero.
void initialize_random(ShardedParameterStore& store, uint64_t seed);

// Throws DataError (file, tensor) unless the directory holds exactly the tensors of `specs` in
// their shapes, as float32 or bfloat16; a tied model's file may hold an lm_head equal to the
// embedding. Values are not looked at.
void check_weights(const std::vector<ParameterSpec>& specs, const model::WeightsDirectory& weights);

// Every rank reads the rows it stores. Values convert to the store's dtype. Throws DataError (file,
// tensor) for what check_weights refuses and for non-finite values.
void load_weights(ShardedParameterStore& store, const model::WeightsDirectory& weights);

// Writes <directory>/model.safetensors under Hugging Face names in `dtype`, from a store that holds
// the whole model (tp and gtp_remat of one rank; a sharded model is refitted into such a store
// first). A local operation.
void save_weights(const ShardedParameterStore& store, const std::filesystem::path& directory,
                  DType dtype);

}  // namespace grpo::parallel
