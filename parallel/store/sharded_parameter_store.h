// ShardedParameterStore: the weights of one model on one rank under GTP weight rematerialization,
// with fp32 gradients. With gtp_remat off or of one rank it is a plain store and gathers nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/core/device_stream.h"
#include "model/core/parameter_store.h"
#include "parallel/layout/process_groups.h"
#include "parallel/layout/shard_layout.h"
#include "parallel/store/gather_buffers.h"

namespace grpo::parallel {

// Proof that GTP ran, over the store's life.
struct GtpCounters {
  int64_t gathers = 0;                 // weights all-gathered over gtp_remat
  int64_t gathered_bytes = 0;          // their padded sizes
  int64_t reduce_scatters = 0;         // gradients reduce-scattered over gtp_remat
  int64_t reduce_scattered_bytes = 0;  // their padded fp32 sizes

  // What came on top of an earlier reading.
  GtpCounters since(const GtpCounters& earlier) const {
    return {.gathers = gathers - earlier.gathers,
            .gathered_bytes = gathered_bytes - earlier.gathered_bytes,
            .reduce_scatters = reduce_scatters - earlier.reduce_scatters,
            .reduce_scattered_bytes = reduce_scattered_bytes - earlier.reduce_scattered_bytes};
  }
};

// Parameters of one placement, end to end in one allocation, so that the dp axis needs one
// collective for all. The dp axis splits the arena into equal chunks; a rank's optimizer owns its
// chunk.
struct Arena {
  OwnedTensor weights;          // [num_elements] in the store's dtype
  OwnedTensor gradients;        // [num_elements] float32; empty without gradients
  OwnedTensor owned_gradients;  // [chunk] float32, summed over dp; empty when dp is 1
  int64_t chunk_elements = 0;   // num_elements = chunk_elements x dp
};

// A run of logical elements this rank's optimizer owns. Padding is in no span.
struct OwnedSpan {
  ParameterId parameter;
  int64_t state_offset;  // into optimizer state, all spans end to end
  int64_t num_elements;
  Tensor weight;        // [num_elements] the store's dtype
  Tensor gradient;      // [num_elements] float32, complete after reduce_gradients()
  bool counts_in_norm;  // false where a peer of the gtp or tp axis owns the same logical elements
  int part;             // logical tensor
  int64_t logical_row;  // of the first element
  int64_t logical_col;
};

enum class Gradients : bool { kNone, kFp32 };

// Owned by the trainer or the engine; one thread. Errors: CommError from collectives, InternalError
// for a pass that leaves its schedule.
class ShardedParameterStore : public ParameterStore {
 public:
  // Weights start at zero. `name` ("policy", "reference", "generation") owns the memory in reports.
  ShardedParameterStore(std::string name, std::vector<ParameterSpec> specs, ProcessGroups groups,
                        DType dtype, Gradients gradients, Allocator& allocator);
  ~ShardedParameterStore() override;

  const std::vector<ParameterSpec>& specs() const override { return specs_; }
  DType dtype() const override { return dtype_; }
  std::unique_ptr<Pass> begin_pass(const UseSchedule& schedule) override;
  uint64_t version() const override { return version_; }
  bool has_fixed_weights() const override { return groups_.gtp_remat.size() == 1; }

  const std::string& name() const { return name_; }
  Allocator& allocator() { return buffers_.allocator(); }
  Device device() const { return sharded_.weights.view().device(); }
  const ProcessGroups& groups() const { return groups_; }
  const ShardLayout& layout(ParameterId id) const {
    return entries_[static_cast<size_t>(id)].layout;
  }
  // This rank's shard, [shard_rows, cols]; padding rows hold zeros.
  Tensor shard(ParameterId id) const;
  Tensor gradient_shard(ParameterId id) const;
  const GtpCounters& counters() const { return counters_; }

  // Fills all weights with NaN: a model that waits for its first refit must not look usable.
  void poison_weights();
  // Whoever writes weights says so: what is derived from them becomes stale.
  void mark_weights_changed() { ++version_; }

  // Between phases: frees the full-size buffers of the passes so far; the next pass allocates them
  // again.
  void drop_idle_buffers() { buffers_.drop_idle(); }

  void zero_gradients();
  // After the last pass of a step: sums gradients over dp; over gtp_remat passes did.
  void reduce_gradients();
  const std::vector<OwnedSpan>& owned_spans() const { return owned_spans_; }
  int64_t num_owned_elements() const;
  // After the optimizer wrote the owned spans: every dp replica receives all chunks.
  void gather_updated_weights();

 private:
  friend class GtpPass;
  struct Entry {
    ShardLayout layout;
    Arena* arena;
    int64_t offset;  // first element in the arena
    bool is_gathered;
  };

  void place_parameters(Allocator& allocator, Gradients gradients);
  void build_owned_spans();
  void append_spans(const Entry& entry, ParameterId id, const ShardRegion& region);

  std::string name_;
  std::vector<ParameterSpec> specs_;
  ProcessGroups groups_;
  DType dtype_;
  uint64_t version_ = 1;
  Arena sharded_;
  Arena replicated_;
  std::vector<Entry> entries_;
  std::vector<OwnedSpan> owned_spans_;
  GatherBuffers buffers_;
  DeviceStream communication_;  // of passes, beside the work
  GtpCounters counters_;
  bool pass_active_ = false;
};

}  // namespace grpo::parallel
