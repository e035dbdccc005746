#include "parallel/refit/refit_plan.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <tuple>
#include <utility>

#include "model/core/counter_rng.h"
#include "model/core/errors.h"

namespace grpo::parallel {

std::vector<ShardCoordinate> training_coordinates(const Mesh& mesh, int64_t gtp_alignment) {
  std::vector<ShardCoordinate> coordinates;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const MeshCoordinate c = mesh.coordinate(rank);
    coordinates.push_back({.tp_size = mesh.tp_size(),
                           .tp_rank = c.tp,
                           .gtp_size = mesh.gtp_remat_size(),
                           .gtp_rank = c.gtp_remat,
                           .gtp_alignment = gtp_alignment});
  }
  return coordinates;
}

std::vector<ShardCoordinate> whole_model_coordinates(int world_size) {
  return std::vector<ShardCoordinate>(
      static_cast<size_t>(world_size),
      {.tp_size = 1, .tp_rank = 0, .gtp_size = 1, .gtp_rank = 0, .gtp_alignment = 1});
}

namespace {

// An order-dependent hash of integers.
class Hash {
 public:
  void mix(uint64_t value) { value_ = mix_bits(value_ ^ value) + 1; }
  void mix_all(std::initializer_list<int64_t> values) {
    for (const int64_t value : values) mix(static_cast<uint64_t>(value));
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

}  // namespace

uint64_t layout_hash(const std::vector<ParameterSpec>& specs, const ShardCoordinate& coordinate) {
  Hash hash;
  for (const ParameterSpec& spec : specs) {
    const ShardLayout layout = compute_shard_layout(spec, coordinate);
    hash.mix_all({layout.shard_rows, layout.cols});
    for (const ShardRegion& region : layout.regions) {
      hash.mix(hash_name(spec.parts[static_cast<size_t>(region.part)].name));
      hash.mix_all({region.logical_row, region.logical_col, region.num_rows, region.num_cols,
                    region.stored_row});
    }
  }
  return hash.value();
}

namespace {

// A rectangle of one logical tensor on one rank.
struct Placed {
  int rank;
  ParameterId parameter;
  ShardRegion region;
};

using LogicalRectangle = std::tuple<int64_t, int64_t, int64_t, int64_t>;  // row, col, rows, cols

LogicalRectangle rectangle_of(const ShardRegion& r) {
  return {r.logical_row, r.logical_col, r.num_rows, r.num_cols};
}

// Everything a side stores of one logical tensor: distinct rectangles, each with the ranks that
// hold it.
struct TensorPlacement {
  LogicalTensor tensor;
  std::map<LogicalRectangle, std::vector<Placed>> rectangles;  // ascending in ranks
};

std::map<std::string, TensorPlacement> place_tensors(const RefitSide& side) {
  std::map<std::string, TensorPlacement> tensors;
  for (size_t i = 0; i < side.specs.size(); ++i) {
    const ParameterSpec& spec = side.specs[i];
    for (const LogicalTensor& part : spec.parts) tensors[part.name].tensor = part;
    for (size_t rank = 0; rank < side.coordinates.size(); ++rank) {
      const ShardLayout layout = compute_shard_layout(spec, side.coordinates[rank]);
      for (const ShardRegion& region : layout.regions) {
        const LogicalTensor& part = spec.parts[static_cast<size_t>(region.part)];
        tensors[part.name].rectangles[rectangle_of(region)].push_back(
            {static_cast<int>(rank), static_cast<ParameterId>(i), region});
      }
    }
  }
  return tensors;
}

}  // namespace

class RefitPlan::Builder {
 public:
  Builder(RefitPlan& plan, const RefitSide& source, const RefitSide& destination,
          const RefitPlanOptions& options)
      : plan_(plan),
        options_(options),
        destination_side_(destination),
        source_(place_tensors(source)),
        destination_(place_tensors(destination)),
        world_size_(source.coordinates.size()) {
    CHECK(destination.coordinates.size() == world_size_);
    plan_.source_dtype_ = source.dtype;
    plan_.destination_dtype_ = destination.dtype;
    plan_.wire_dtype_ = dtype_size_bytes(source.dtype) <= dtype_size_bytes(destination.dtype)
                            ? source.dtype
                            : destination.dtype;
    plan_.source_fingerprint_.resize(world_size_);
    plan_.destination_fingerprint_.resize(world_size_);
    for (size_t rank = 0; rank < world_size_; ++rank) {
      plan_.source_layouts_.push_back(layout_hash(source.specs, source.coordinates[rank]));
      plan_.destination_layouts_.push_back(
          layout_hash(destination.specs, destination.coordinates[rank]));
    }
  }

  void build() {
    for (const auto& [name, placement] : source_) {
      if (!destination_.contains(name)) {
        throw ConfigError(fmt::format(
            "refit: the trained model has a tensor '{}' that the generation model lacks", name));
      }
    }
    for (const auto& [name, placement] : destination_) {
      const TensorPlacement& source = source_of(name, placement.tensor);
      add_tensor_tasks(source, placement);
      add_fingerprints(hash_name(name), source, placement);
    }
    cut_windows();
    plan_.hash_ = hash_plan();
  }

 private:
  const TensorPlacement& source_of(const std::string& name, const LogicalTensor& tensor) const {
    auto it = source_.find(name);
    if (it == source_.end() && name == "lm_head.weight")
      it = source_.find("model.embed_tokens.weight");
    if (it == source_.end()) {
      throw ConfigError(fmt::format("refit: no trained tensor for '{}'", name));
    }
    const LogicalTensor& have = it->second.tensor;
    if (have.rows != tensor.rows || have.cols != tensor.cols) {
      throw ConfigError(
          fmt::format("refit: '{}' is [{}, {}] in training and [{}, {}] in generation", name,
                      have.rows, have.cols, tensor.rows, tensor.cols));
    }
    return it->second;
  }

  void add_tensor_tasks(const TensorPlacement& source, const TensorPlacement& destination) {
    for (const auto& [rectangle, holders] : destination.rectangles) {
      for (const Placed& holder : holders) {
        int64_t covered = 0;
        for (const auto& [source_rectangle, candidates] : source.rectangles) {
          covered += add_intersection(choose(candidates, holder.rank), holder);
        }
        CHECK(covered == holder.region.num_rows * holder.region.num_cols,
              "refit covers {} of {} elements of '{}' on rank {}", covered,
              holder.region.num_rows * holder.region.num_cols, destination.tensor.name,
              holder.rank);
      }
    }
  }

  // The destination itself when it holds the rows. Otherwise each replica (dp is the slowest axis,
  // so a run of ranks) serves its own run.
  const Placed& choose(const std::vector<Placed>& candidates, int destination_rank) const {
    const auto own =
        std::lower_bound(candidates.begin(), candidates.end(), destination_rank,
                         [](const Placed& candidate, int rank) { return candidate.rank < rank; });
    if (own != candidates.end() && own->rank == destination_rank) return *own;
    return candidates[static_cast<size_t>(destination_rank) * candidates.size() / world_size_];
  }

  int64_t add_intersection(const Placed& from, const Placed& to) {
    const ShardRegion& s = from.region;
    const ShardRegion& d = to.region;
    const int64_t row = std::max(s.logical_row, d.logical_row);
    const int64_t row_end = std::min(s.logical_row + s.num_rows, d.logical_row + d.num_rows);
    const int64_t col = std::max(s.logical_col, d.logical_col);
    const int64_t col_end = std::min(s.logical_col + s.num_cols, d.logical_col + d.num_cols);
    if (row >= row_end || col >= col_end) return 0;
    const int64_t row_bytes =
        (col_end - col) * static_cast<int64_t>(dtype_size_bytes(plan_.wire_dtype_));
    int64_t task_rows = std::max<int64_t>(1, options_.bucket_bytes / 2 / row_bytes);
    if (options_.max_task_rows > 0) task_rows = std::min(task_rows, options_.max_task_rows);
    for (int64_t r = row; r < row_end; r += task_rows) {
      plan_.tasks_.push_back({.source_rank = from.rank,
                              .destination_rank = to.rank,
                              .source_parameter = from.parameter,
                              .destination_parameter = to.parameter,
                              .source_row = s.stored_row + r - s.logical_row,
                              .source_col = col - s.logical_col,
                              .destination_row = d.stored_row + r - d.logical_row,
                              .destination_col = col - d.logical_col,
                              .num_rows = std::min(task_rows, row_end - r),
                              .num_cols = col_end - col});
    }
    return (row_end - row) * (col_end - col);
  }

  void add_fingerprints(uint64_t tensor_key, const TensorPlacement& source,
                        const TensorPlacement& destination) {
    const auto region_of = [&](const Placed& placed) {
      const ShardRegion& r = placed.region;
      return FingerprintRegion{placed.parameter, tensor_key,    r.stored_row, 0,
                               r.logical_row,    r.logical_col, r.num_rows,   r.num_cols};
    };
    // The lowest rank that holds a rectangle counts it for all.
    for (const auto& [rectangle, holders] : source.rectangles) {
      plan_.source_fingerprint_[static_cast<size_t>(holders.front().rank)].push_back(
          region_of(holders.front()));
    }
    // Every destination model counts its own elements once: a tp group's replicated ones on its
    // first rank.
    for (const auto& [rectangle, holders] : destination.rectangles) {
      for (const Placed& holder : holders) {
        const size_t parameter = static_cast<size_t>(holder.parameter);
        const bool counted_elsewhere =
            destination_side_.specs[parameter].tp_cut == TpCut::kReplicated &&
            destination_side_.coordinates[static_cast<size_t>(holder.rank)].tp_rank != 0;
        if (counted_elsewhere) continue;
        plan_.destination_fingerprint_[static_cast<size_t>(holder.rank)].push_back(
            region_of(holder));
      }
    }
  }

  void cut_windows() {
    const auto wire_bytes = static_cast<int64_t>(dtype_size_bytes(plan_.wire_dtype_));
    std::vector<int64_t> staged(world_size_, 0);
    plan_.window_offsets_.push_back(0);
    for (size_t i = 0; i < plan_.tasks_.size(); ++i) {
      const TransferTask& task = plan_.tasks_[i];
      if (task.source_rank == task.destination_rank) continue;
      const int64_t bytes = task.num_elements() * wire_bytes;
      int64_t& sender = staged[static_cast<size_t>(task.source_rank)];
      int64_t& receiver = staged[static_cast<size_t>(task.destination_rank)];
      if (std::max(sender, receiver) + bytes > options_.bucket_bytes &&
          i > plan_.window_offsets_.back()) {
        plan_.window_offsets_.push_back(i);
        std::fill(staged.begin(), staged.end(), 0);
      }
      sender += bytes;
      receiver += bytes;
    }
    plan_.window_offsets_.push_back(plan_.tasks_.size());
  }

  uint64_t hash_plan() const {
    Hash hash;
    for (const TransferTask& t : plan_.tasks_) {
      hash.mix_all({t.source_rank, t.destination_rank, t.source_parameter, t.destination_parameter,
                    t.source_row, t.source_col, t.destination_row, t.destination_col, t.num_rows,
                    t.num_cols});
    }
    for (const size_t offset : plan_.window_offsets_) hash.mix(offset);
    for (const uint64_t layout : plan_.source_layouts_) hash.mix(layout);
    for (const uint64_t layout : plan_.destination_layouts_) hash.mix(layout);
    hash.mix_all({static_cast<int64_t>(plan_.source_dtype_),
                  static_cast<int64_t>(plan_.destination_dtype_)});
    return hash.value();
  }

  RefitPlan& plan_;
  RefitPlanOptions options_;
  const RefitSide& destination_side_;
  std::map<std::string, TensorPlacement> source_;
  std::map<std::string, TensorPlacement> destination_;
  size_t world_size_;
};

RefitPlan::RefitPlan(const RefitSide& source, const RefitSide& destination,
                     const RefitPlanOptions& options) {
  Builder(*this, source, destination, options).build();
}

std::vector<int64_t> RefitPlan::most_staged_bytes() const {
  const auto wire_bytes = static_cast<int64_t>(dtype_size_bytes(wire_dtype_));
  std::vector<int64_t> most(static_cast<size_t>(world_size()), 0);
  for (size_t window = 0; window + 1 < window_offsets_.size(); ++window) {
    std::vector<int64_t> staged(most.size(), 0);
    for (size_t i = window_offsets_[window]; i < window_offsets_[window + 1]; ++i) {
      const TransferTask& task = tasks_[i];
      if (task.source_rank == task.destination_rank) continue;
      staged[static_cast<size_t>(task.source_rank)] += task.num_elements() * wire_bytes;
      staged[static_cast<size_t>(task.destination_rank)] += task.num_elements() * wire_bytes;
    }
    for (size_t rank = 0; rank < most.size(); ++rank)
      most[rank] = std::max(most[rank], staged[rank]);
  }
  return most;
}

}  // namespace grpo::parallel
