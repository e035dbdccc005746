// ShardLayout: which logical rows and columns of a parameter a rank holds, and where. The only code
// that computes a shard size.
#pragma once

#include <cstdint>
#include <vector>

#include "model/core/parameter_spec.h"

namespace grpo::parallel {

// Where a rank stands on the axes that cut parameters. An axis that is off has size 1.
struct ShardCoordinate {
  int tp_size;
  int tp_rank;
  int gtp_size;
  int gtp_rank;
  int64_t gtp_alignment;  // rows; a shard's rows are a multiple of it
};

// A rectangle of one logical tensor and its place in a rank's storage. Rows that no region covers
// are padding.
struct ShardRegion {
  int part;             // index into ParameterSpec::parts
  int64_t logical_row;  // first row in the logical tensor
  int64_t logical_col;
  int64_t num_rows;
  int64_t num_cols;    // always the storage's full width
  int64_t stored_row;  // first row in the rank's shard

  friend bool operator==(const ShardRegion&, const ShardRegion&) = default;
};

struct ShardLayout {
  int64_t tp_rows;  // rows of the whole TP-local parameter, a padded vocabulary's padding included
  int64_t padded_rows;  // rows gathered over gtp: tp_rows rounded up to alignment x gtp (tp_rows if
                        // replicated)
  int64_t shard_rows;   // rows stored on a rank
  int64_t cols;         // columns stored
  std::vector<ShardRegion> regions;  // what this rank's shard holds, ascending in stored_row

  int64_t num_elements() const { return shard_rows * cols; }
};

// Throws ConfigError when a tensor does not divide over tp (name, rows, degree).
ShardLayout compute_shard_layout(const ParameterSpec& spec, const ShardCoordinate& coordinate);

// The regions of the whole TP-local parameter, as gathered (stored_row counts from the gathered
// start).
std::vector<ShardRegion> tp_local_regions(const ParameterSpec& spec, int tp_size, int tp_rank);

}  // namespace grpo::parallel
