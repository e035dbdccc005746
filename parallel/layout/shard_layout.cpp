#include "parallel/layout/shard_layout.h"

#include <algorithm>

#include "model/core/errors.h"

namespace grpo::parallel {

namespace {

int64_t divide_exactly(int64_t size, int tp_size, const std::string& name, const char* what) {
  if (size % tp_size != 0) {
    throw ConfigError(fmt::format("{} of '{}', {}, do not divide over parallel.tensor = {}", what,
                                  name, size, tp_size));
  }
  return size / tp_size;
}

// Rows one tp rank stores of a logical tensor, padding included.
int64_t tp_part_rows(const LogicalTensor& part, TpCut cut, int tp_size) {
  switch (cut) {
    case TpCut::kRows:
      return divide_exactly(part.rows, tp_size, part.name, "rows");
    case TpCut::kPaddedRows:
      return (part.rows + tp_size - 1) / tp_size;
    case TpCut::kReplicated:
    case TpCut::kColumns:
      return part.rows;
  }
  return 0;
}

int64_t tp_local_rows(const ParameterSpec& spec, int tp_size) {
  int64_t rows = 0;
  for (const LogicalTensor& part : spec.parts) rows += tp_part_rows(part, spec.tp_cut, tp_size);
  return rows;
}

}  // namespace

std::vector<ShardRegion> tp_local_regions(const ParameterSpec& spec, int tp_size, int tp_rank) {
  std::vector<ShardRegion> regions;
  int64_t stored_row = 0;
  for (size_t i = 0; i < spec.parts.size(); ++i) {
    const LogicalTensor& part = spec.parts[i];
    const int64_t rows = tp_part_rows(part, spec.tp_cut, tp_size);
    const bool cuts_rows = spec.tp_cut == TpCut::kRows || spec.tp_cut == TpCut::kPaddedRows;
    const int64_t logical_row = cuts_rows ? rows * tp_rank : 0;
    const int64_t num_cols = spec.tp_cut == TpCut::kColumns
                                 ? divide_exactly(part.cols, tp_size, part.name, "columns")
                                 : part.cols;
    ShardRegion region{.part = static_cast<int>(i),
                       .logical_row = logical_row,
                       .logical_col = spec.tp_cut == TpCut::kColumns ? num_cols * tp_rank : 0,
                       .num_rows = std::min(rows, part.rows - logical_row),
                       .num_cols = num_cols,
                       .stored_row = stored_row};
    if (region.num_rows > 0) regions.push_back(region);
    stored_row += rows;
  }
  return regions;
}

ShardLayout compute_shard_layout(const ParameterSpec& spec, const ShardCoordinate& c) {
  CHECK(c.tp_rank >= 0 && c.tp_rank < c.tp_size && c.gtp_rank >= 0 && c.gtp_rank < c.gtp_size &&
            c.gtp_alignment >= 1,
        "tp {}/{}, gtp {}/{}, alignment {}", c.tp_rank, c.tp_size, c.gtp_rank, c.gtp_size,
        c.gtp_alignment);
  const std::vector<ShardRegion> whole = tp_local_regions(spec, c.tp_size, c.tp_rank);
  ShardLayout layout;
  layout.tp_rows = tp_local_rows(spec, c.tp_size);
  layout.cols = whole.empty() ? spec.cols() : whole.front().num_cols;
  if (spec.gtp == GtpPlacement::kReplicated || c.gtp_size == 1) {
    layout.padded_rows = layout.tp_rows;
    layout.shard_rows = layout.tp_rows;
    layout.regions = whole;
    return layout;
  }
  const int64_t unit = c.gtp_alignment * c.gtp_size;
  layout.padded_rows = (layout.tp_rows + unit - 1) / unit * unit;
  layout.shard_rows = layout.padded_rows / c.gtp_size;
  const int64_t begin = layout.shard_rows * c.gtp_rank;
  const int64_t end = begin + layout.shard_rows;
  for (const ShardRegion& region : whole) {
    const int64_t first = std::max(region.stored_row, begin);
    const int64_t last = std::min(region.stored_row + region.num_rows, end);
    if (first >= last) continue;
    ShardRegion cut = region;
    cut.logical_row += first - region.stored_row;
    cut.num_rows = last - first;
    cut.stored_row = first - begin;
    layout.regions.push_back(cut);
  }
  return layout;
}

}  // namespace grpo::parallel
