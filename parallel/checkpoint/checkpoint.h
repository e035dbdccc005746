// Checkpoints: logical tensors in safetensors files whose content depends on the model alone, and a
// manifest whose rename commits. Knows nothing of optimizers: callers supply tensors and the pieces
// of them that a rank holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/core/communicator.h"
#include "parallel/checkpoint/checkpoint_folder.h"
#include "parallel/store/sharded_parameter_store.h"

namespace grpo::parallel {

// A whole tensor of the checkpoint; the same list on every rank.
struct CheckpointTensor {
  std::string file;  // "layer_00003": tensors of a file are neighbours in the list
  std::string name;  // "master/model.norm.weight"
  DType dtype;
  std::vector<int64_t> shape;

  int64_t num_elements() const;
};

// A run of a tensor's elements, row-major, that this rank holds.
struct CheckpointPiece {
  size_t tensor;  // index into the list
  int64_t first_element;
  Tensor values;   // [n], the tensor's dtype
  bool is_writer;  // exactly one rank writes each element
};

struct CheckpointContent {
  std::vector<CheckpointTensor> tensors;
  std::vector<CheckpointPiece> pieces;
};

// One float32 or compute-dtype array that lies parallel to a store's optimizer state or weights.
struct StateArray {
  std::string prefix;  // "master", "m", "v"
  Tensor values;       // [store.num_owned_elements()] float32
};

// Adds a store's weights (as `prefix`/<logical name>) and arrays over its owned elements to the
// content.
void add_weights(CheckpointContent& content, const std::string& prefix,
                 const ShardedParameterStore& store);
void add_owned_state(CheckpointContent& content, const ShardedParameterStore& store,
                     const std::vector<StateArray>& arrays);
// Puts tensors of a file next to each other, files and tensors in a fixed order.
void sort_content(CheckpointContent& content);

inline constexpr int64_t kCheckpointBucketBytes = int64_t{64} << 20;

// Collective over `world`: writes <folder>/<file>.safetensors, file i by rank i modulo the world,
// and manifest.json last. `folder` is shared by all ranks; what an unfinished save left in it goes
// away first. Staging of a rank stays below `bucket_bytes` and comes from `allocator`. Throws
// DataError (path, reason) when the disk refuses; then no manifest appears, and the files of the
// rank that failed go away.
void save_checkpoint(const std::filesystem::path& folder, const CheckpointContent& content,
                     const CheckpointManifest& manifest, Communicator& world, Allocator& allocator,
                     int64_t bucket_bytes = kCheckpointBucketBytes);

// Staging of every rank in save_checkpoint. `content_of` is called with each rank in turn; the
// values are not read.
std::vector<size_t> checkpoint_bucket_bytes(
    int world_size, const std::function<CheckpointContent(int rank)>& content_of,
    int64_t bucket_bytes = kCheckpointBucketBytes);

// What the content has no place for.
enum class Surplus { kRefuse, kIgnore };

// Reads this rank's pieces from a checkpoint saved at any layout; views in `content` are filled.
// Throws DataError for missing files or tensors, other shapes or dtypes, values that are not
// finite, and surplus files and tensors.
void load_checkpoint(const std::filesystem::path& folder, const CheckpointContent& content,
                     Surplus surplus = Surplus::kRefuse);

}  // namespace grpo::parallel
