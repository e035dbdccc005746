// RefitPlan: which rectangle of which logical tensor goes from which rank to which, for moving a
// trained model into the generation model's layout. Pure arithmetic, the same on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "model/core/dtype.h"
#include "model/core/parameter_spec.h"
#include "parallel/layout/mesh.h"
#include "parallel/layout/shard_layout.h"

namespace grpo::parallel {

// One side of a refit: what is stored, and where each world rank stands.
struct RefitSide {
  std::vector<ParameterSpec> specs;
  std::vector<ShardCoordinate> coordinates;  // one a world rank
  DType dtype;
};

// Coordinates of all ranks of a training mesh, and of `world_size` whole models.
std::vector<ShardCoordinate> training_coordinates(const Mesh& mesh, int64_t gtp_alignment);
std::vector<ShardCoordinate> whole_model_coordinates(int world_size);

// Names, shapes and places of everything a rank stores: equal for two stores between which a plan
// may be exchanged.
uint64_t layout_hash(const std::vector<ParameterSpec>& specs, const ShardCoordinate& coordinate);

// A rectangle and its two places. Rows and columns are of shards.
struct TransferTask {
  int source_rank;
  int destination_rank;
  ParameterId source_parameter;
  ParameterId destination_parameter;
  int64_t source_row;
  int64_t source_col;
  int64_t destination_row;
  int64_t destination_col;
  int64_t num_rows;
  int64_t num_cols;

  int64_t num_elements() const { return num_rows * num_cols; }
};

// A rectangle of a rank's shard that the fingerprint counts on that rank: every logical element
// exactly once over the ranks that together hold one model.
struct FingerprintRegion {
  ParameterId parameter;
  uint64_t tensor_key;  // hash of the destination's logical name
  int64_t row;          // of the shard
  int64_t col;
  int64_t logical_row;
  int64_t logical_col;
  int64_t num_rows;
  int64_t num_cols;
};

struct RefitPlanOptions {
  int64_t bucket_bytes = int64_t{64} << 20;  // staging of a rank, sends and receives together
  int64_t max_task_rows = 0;  // cut tasks to this many rows; 0 leaves it to the bucket
};

// Immutable. A tied source feeds a separately stored head from the embedding.
class RefitPlan {
 public:
  // Throws ConfigError when the models differ: a logical tensor without a source, other shapes, or
  // an untied source for a tied destination. InternalError when a destination element has not
  // exactly one source.
  RefitPlan(const RefitSide& source, const RefitSide& destination, const RefitPlanOptions& options);

  // All tasks in the global order that every rank walks; windows [offsets[i], offsets[i+1]) fit the
  // bucket.
  const std::vector<TransferTask>& tasks() const { return tasks_; }
  const std::vector<size_t>& window_offsets() const { return window_offsets_; }
  const std::vector<FingerprintRegion>& source_fingerprint(int rank) const {
    return source_fingerprint_[static_cast<size_t>(rank)];
  }
  const std::vector<FingerprintRegion>& destination_fingerprint(int rank) const {
    return destination_fingerprint_[static_cast<size_t>(rank)];
  }
  // Of everything that the ranks must agree on.
  uint64_t hash() const { return hash_; }
  // layout_hash of the stores that the plan is for.
  uint64_t source_layout(int rank) const { return source_layouts_[static_cast<size_t>(rank)]; }
  uint64_t destination_layout(int rank) const {
    return destination_layouts_[static_cast<size_t>(rank)];
  }
  DType source_dtype() const { return source_dtype_; }
  DType destination_dtype() const { return destination_dtype_; }
  DType wire_dtype() const { return wire_dtype_; }  // the narrower of the two
  int world_size() const { return static_cast<int>(source_fingerprint_.size()); }
  // The most bytes of messages that each rank stages in one window, sends and receives together.
  std::vector<int64_t> most_staged_bytes() const;

 private:
  class Builder;

  std::vector<TransferTask> tasks_;
  std::vector<size_t> window_offsets_;
  std::vector<std::vector<FingerprintRegion>> source_fingerprint_;
  std::vector<std::vector<FingerprintRegion>> destination_fingerprint_;
  std::vector<uint64_t> source_layouts_;
  std::vector<uint64_t> destination_layouts_;
  uint64_t hash_ = 0;
  DType source_dtype_;
  DType destination_dtype_;
  DType wire_dtype_;
};

}  // namespace grpo::parallel
