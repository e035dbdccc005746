// bfloat16 gradients of attention on tensor cores, without atomics: one kernel for those of keys
// and values (a block a tile of 64 keys, all rows that see them in ascending order), one for those
// of queries (a block 64 rows, all keys they see). Rows are heads of a group within positions. Both
// recompute the weights P = exp(scale q k^T - lse) and dS = P (dout v^T - delta), delta = sum dout
// out; P and dS are rounded to bfloat16 as factors. The scale is applied to the sums.
#include "model/ops/attention_cuda.h"
#include "model/ops/attention_plain_cuda.h"
#include "model/ops/attention_tile_cuda.cuh"

namespace grpo::ops {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kTileRows = kWarps * kWarpRows;
static_assert(kTileRows == kTileKeys, "a tile of rows is a right factor like a tile of keys");

// Blocks that registers and shared memory are meant to leave room for on a multiprocessor.
template <int kDim>
constexpr int kBlocks = kDim == 64 ? 3 : 2;

struct BackwardOperands {
  AttentionView view;
  __nv_bfloat16* dq;            // [T, H, K]
  __nv_bfloat16* dkeys;         // [T, G, K]
  __nv_bfloat16* dvalues;       // [T, G, K]
  const __nv_bfloat16* q;       // [T, H, K]
  const __nv_bfloat16* keys;    // [T, G, K]
  const __nv_bfloat16* values;  // [T, G, K]
  const __nv_bfloat16* dout;    // [T, H, K]
  const float* lse;             // [T, H]
  const float* delta;           // [T, H]
  float scale;
  float scale_log2;  // scale * log2(e)
  int num_tiles;     // of the longest sequence
};

// kDim / 8 threads a row.
template <int kDim>
__global__ void __launch_bounds__(kThreads)
    delta_kernel(float* delta, const __nv_bfloat16* dout, const __nv_bfloat16* out,
                 int64_t num_rows) {
  constexpr int kRowLanes = kDim / 8;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = at / kRowLanes;
  const bool inside = row < num_rows;
  float a[8];
  float b[8];
  load_group<8>(a, dout + (inside ? at * 8 : 0), inside ? 8 : 0, true);
  load_group<8>(b, out + (inside ? at * 8 : 0), inside ? 8 : 0, true);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = __fmaf_rn(a[i], b[i], sum);
#pragma unroll
  for (int distance = kRowLanes / 2; distance > 0; distance /= 2)
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, distance));
  if (inside && at % kRowLanes == 0) delta[row] = sum;
}

__device__ inline float weight_of(float score, float scale_log2, float lse) {
  return exp2_fast(__fmaf_rn(score, scale_log2, -__fmul_rn(lse, kLog2E)));
}

template <int kDim>
__device__ inline void scale_sums(float (&sums)[kDim / 8][4], float scale) {
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] = __fmul_rn(sums[n][i], scale);
  }
}

// A tile of rows on its way through shared memory, as the right factor of a tile of keys.
template <int kDim>
struct RowTile {
  Tile<kDim> q;
  Tile<kDim> dout;
  float* lse;      // [kTileRows]
  float* delta;    // [kTileRows]
  int* positions;  // [kTileRows], -1 where there is no row

  static constexpr int kBytes = kTileRows * (2 * kDim * 2 + 3 * 4);

  __device__ explicit RowTile(unsigned char* shared)
      : q{reinterpret_cast<__nv_bfloat16*>(shared)},
        dout{q.data + kTileRows * kDim},
        lse(reinterpret_cast<float*>(dout.data + kTileRows * kDim)),
        delta(lse + kTileRows),
        positions(reinterpret_cast<int*>(delta + kTileRows)) {}

  // Begins to copy rows [first_row, first_row + kTileRows).
  __device__ void begin(const BackwardOperands& operands, const DeviceSequence& sequence, int head,
                        int first_row) const {
    const AttentionView& view = operands.view;
    const int num_rows = sequence.num_queries * view.group;
    const auto source = [&](const __nv_bfloat16* all) {
      return [&view, &sequence, all, head, first_row, num_rows](int row) {
        return first_row + row < num_rows
                   ? all + query_index(view, sequence, head, first_row + row) * kDim
                   : nullptr;
      };
    };
    copy_rows<kThreads>(q, kTileRows, operands.q, source(operands.q));
    copy_rows<kThreads>(dout, kTileRows, operands.dout, source(operands.dout));
    const int row = static_cast<int>(threadIdx.x) % kTileRows;
    const bool valid = first_row + row < num_rows;
    const int64_t index = valid ? query_index(view, sequence, head, first_row + row) : 0;
    if (static_cast<int>(threadIdx.x) < kTileRows) {
      copy_float(lse + row, operands.lse + index, valid);
      positions[row] = valid ? sequence.first_position + (first_row + row) / view.group : -1;
    } else {
      copy_float(delta + row, operands.delta + index, valid);
    }
  }
};

// From a warp's scores and dout v^T, transposed: 16 keys from first_key by the tile's rows. They
// become P and dS.
template <int kDim>
__device__ inline void key_score_gradients(float (&scores)[kTileRows / 8][4],
                                           float (&ds)[kTileRows / 8][4], const RowTile<kDim>& rows,
                                           int first_key, float scale_log2) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int key = first_key + lane / kRowThreads;
#pragma unroll
  for (int n = 0; n < kTileRows / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 8 * n + lane % kRowThreads * 2 + i % 2;
      const bool visible = key + i / 2 * 8 <= rows.positions[row];
      const float p = weight_of(scores[n][i], scale_log2, rows.lse[row]);
      scores[n][i] = visible ? p : 0.0f;
      ds[n][i] = visible ? __fmul_rn(p, __fsub_rn(ds[n][i], rows.delta[row])) : 0.0f;
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, kBlocks<kDim>)
    key_gradients_kernel(BackwardOperands operands) {
  extern __shared__ __align__(128) unsigned char shared[];
  const AttentionView& view = operands.view;
  // The first keys, which most rows see, come first.
  const int sequence_head = static_cast<int>(blockIdx.x) % (view.num_sequences * view.kv_heads);
  const int first_key =
      static_cast<int>(blockIdx.x) / (view.num_sequences * view.kv_heads) * kTileKeys;
  const int head = sequence_head % view.kv_heads;
  const DeviceSequence sequence(view, sequence_head / view.kv_heads);
  if (first_key >= sequence.num_queries) return;
  const int num_rows = sequence.num_queries * view.group;
  const auto key_offset = [&](int key) {
    return (static_cast<int64_t>(sequence.first_query + key) * view.kv_heads + head) * kDim;
  };
  const Tile<kDim> keys{reinterpret_cast<__nv_bfloat16*>(shared)};
  const Tile<kDim> values{keys.data + kTileKeys * kDim};
  const auto row_tile = [&](int index) {
    return RowTile<kDim>(shared + 2 * kTileKeys * kDim * 2 + index % 2 * RowTile<kDim>::kBytes);
  };
  const auto copy_keys = [&](const Tile<kDim>& tile, const __nv_bfloat16* all) {
    copy_rows<kThreads>(tile, kTileKeys, all, [&](int row) {
      return first_key + row < sequence.num_queries ? all + key_offset(first_key + row) : nullptr;
    });
  };
  copy_keys(keys, operands.keys);
  copy_keys(values, operands.values);
  const int begin = first_key * view.group;
  const int num_tiles = (num_rows - begin + kTileRows - 1) / kTileRows;
  row_tile(0).begin(operands, sequence, head, begin);
  commit_copies();

  const int warp_key = static_cast<int>(threadIdx.x) / 32 * kWarpRows;
  float dkeys[kDim / 8][4] = {};
  float dvalues[kDim / 8][4] = {};
  for (int tile = 0; tile < num_tiles; ++tile) {
    if (tile + 1 < num_tiles) {
      row_tile(tile + 1).begin(operands, sequence, head, begin + (tile + 1) * kTileRows);
      commit_copies();
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();
    const RowTile<kDim> rows = row_tile(tile);
    float scores[kTileRows / 8][4] = {};
    float ds[kTileRows / 8][4] = {};
    multiply_rows(scores, keys, warp_key, rows.q);
    multiply_rows(ds, values, warp_key, rows.dout);
    key_score_gradients(scores, ds, rows, first_key + warp_key, operands.scale_log2);
    LeftRows<kTileRows> factor;
    round_left(factor, scores);
    multiply_columns(dvalues, factor, rows.dout);
    round_left(factor, ds);
    multiply_columns(dkeys, factor, rows.q);
    __syncthreads();
  }
  scale_sums<kDim>(dkeys, operands.scale);
  const auto destination = [&](__nv_bfloat16* all) {
    return [&sequence, key_offset, first_key, all](int row) {
      return first_key + row < sequence.num_queries ? all + key_offset(first_key + row) : nullptr;
    };
  };
  store_rows(keys, warp_key, dkeys, destination(operands.dkeys));
  store_rows(values, warp_key, dvalues, destination(operands.dvalues));
}

// A lane's two rows, g and g + 8 of its warp.
struct LaneRows {
  int positions[2];
  float lse[2];
  float delta[2];
};

// From a warp's scores and dout v^T for 64 keys from first_key: the latter become dS.
__device__ inline void query_score_gradients(float (&ds)[kTileKeys / 8][4],
                                             const float (&scores)[kTileKeys / 8][4],
                                             const LaneRows& rows, int first_key,
                                             float scale_log2) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < kTileKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first_key + 8 * n + lane % kRowThreads * 2 + i % 2;
      const float p = weight_of(scores[n][i], scale_log2, rows.lse[i / 2]);
      ds[n][i] = key <= rows.positions[i / 2] ? __fmul_rn(p, __fsub_rn(ds[n][i], rows.delta[i / 2]))
                                              : 0.0f;
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, kBlocks<kDim>)
    query_gradient_kernel(BackwardOperands operands) {
  extern __shared__ __align__(128) unsigned char shared[];
  const AttentionView& view = operands.view;
  // The last rows, which see most keys, come first.
  const int sequence_head = static_cast<int>(blockIdx.x) % (view.num_sequences * view.kv_heads);
  const int first_row = (operands.num_tiles - 1 -
                         static_cast<int>(blockIdx.x) / (view.num_sequences * view.kv_heads)) *
                        kTileRows;
  const int head = sequence_head % view.kv_heads;
  const DeviceSequence sequence(view, sequence_head / view.kv_heads);
  const int num_rows = sequence.num_queries * view.group;
  if (first_row >= num_rows) return;
  const int last_row = min(first_row + kTileRows, num_rows) - 1;
  const int num_keys = sequence.first_position + last_row / view.group + 1;
  const int num_tiles = (num_keys + kTileKeys - 1) / kTileKeys;
  const auto tile_at = [&](int index) {
    return Tile<kDim>{reinterpret_cast<__nv_bfloat16*>(shared) + index * kTileKeys * kDim};
  };
  const Tile<kDim> queries = tile_at(0);
  const Tile<kDim> douts = tile_at(1);
  const auto row_of = [&](auto* all, int row) {
    return first_row + row > last_row
               ? nullptr
               : all + query_index(view, sequence, head, first_row + row) * kDim;
  };
  copy_rows<kThreads>(queries, kTileRows, operands.q,
                      [&](int row) { return row_of(operands.q, row); });
  copy_rows<kThreads>(douts, kTileRows, operands.dout,
                      [&](int row) { return row_of(operands.dout, row); });
  const auto begin_tile = [&](int tile) {
    const auto copy = [&](const Tile<kDim>& to, const __nv_bfloat16* all) {
      copy_rows<kThreads>(to, kTileKeys, all, [&](int row) -> const __nv_bfloat16* {
        const int key = tile * kTileKeys + row;
        if (key >= num_keys) return nullptr;
        return all +
               (static_cast<int64_t>(sequence.first_query + key) * view.kv_heads + head) * kDim;
      });
    };
    copy(tile_at(2 + tile % 2 * 2), operands.keys);
    copy(tile_at(3 + tile % 2 * 2), operands.values);
    commit_copies();
  };
  begin_tile(0);

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * kWarpRows;
  LaneRows rows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = min(first_row + warp_row + lane / kRowThreads + 8 * half, last_row);
    const int64_t index = query_index(view, sequence, head, row);
    rows.positions[half] = sequence.first_position + row / view.group;
    rows.lse[half] = operands.lse[index];
    rows.delta[half] = operands.delta[index];
  }
  float dq[kDim / 8][4] = {};
  for (int tile = 0; tile < num_tiles; ++tile) {
    if (tile + 1 < num_tiles) {
      begin_tile(tile + 1);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();
    const Tile<kDim> keys = tile_at(2 + tile % 2 * 2);
    float scores[kTileKeys / 8][4] = {};
    float ds[kTileKeys / 8][4] = {};
    multiply_rows(scores, queries, warp_row, keys);
    multiply_rows(ds, douts, warp_row, tile_at(3 + tile % 2 * 2));
    query_score_gradients(ds, scores, rows, tile * kTileKeys, operands.scale_log2);
    LeftRows<kTileKeys> factor;
    round_left(factor, ds);
    multiply_columns(dq, factor, keys);
    __syncthreads();
  }
  scale_sums<kDim>(dq, operands.scale);
  store_rows(queries, warp_row, dq, [&](int row) { return row_of(operands.dq, row); });
}

template <int kDim>
void launch_backward(const char* op, BackwardOperands operands, float* delta, const Tensor& out,
                     int64_t longest, OpContext& ctx) {
  const AttentionView& view = operands.view;
  const int64_t num_rows = out.size(0) * out.size(1);
  const int64_t sequence_heads = int64_t{view.num_sequences} * view.kv_heads;
  constexpr int64_t kTileBytes = kTileKeys * kDim * sizeof(__nv_bfloat16);
  launch(op, delta_kernel<kDim>, ceil_div(num_rows * (kDim / 8), kThreads), kThreads, ctx, delta,
         operands.dout, device_data<__nv_bfloat16>(out), num_rows);
  launch_with_shared(op, key_gradients_kernel<kDim>, ceil_div(longest, kTileKeys) * sequence_heads,
                     kThreads, 2 * kTileBytes + 2 * RowTile<kDim>::kBytes, ctx, operands);
  operands.num_tiles = static_cast<int>(ceil_div(longest * view.group, kTileRows));
  launch_with_shared(op, query_gradient_kernel<kDim>, operands.num_tiles * sequence_heads, kThreads,
                     6 * kTileBytes, ctx, operands);
}

}  // namespace

void attention_backward_cuda(const AttentionGradients& gradients, const Tensor& dout,
                             const AttentionSaved& saved, const KvView& kv, float scale,
                             OpContext& ctx) {
  const char* op = "attention_backward";
  const Tensor& q = saved.q;
  if (q.num_elements() == 0) return;
  if (!has_tensor_core_kernel(q)) {
    attention_backward_plain_cuda(gradients, dout, saved, kv, scale, ctx);
    return;
  }
  check_tile_operands(op,
                      {&q, &saved.out, &kv.keys, &kv.values, &dout, &gradients.dq, &gradients.dkeys,
                       &gradients.dvalues},
                      scale);
  const Workspace::Scope scope(ctx.workspace);
  float* delta = ctx.workspace.take(DType::kFloat32, {q.size(0), q.size(1)}).data<float>();
  const BackwardOperands operands{.view = attention_view(q, kv),
                                  .dq = device_data<__nv_bfloat16>(gradients.dq),
                                  .dkeys = device_data<__nv_bfloat16>(gradients.dkeys),
                                  .dvalues = device_data<__nv_bfloat16>(gradients.dvalues),
                                  .q = device_data<__nv_bfloat16>(q),
                                  .keys = device_data<__nv_bfloat16>(kv.keys),
                                  .values = device_data<__nv_bfloat16>(kv.values),
                                  .dout = device_data<__nv_bfloat16>(dout),
                                  .lse = saved.lse.data<float>(),
                                  .delta = delta,
                                  .scale = scale,
                                  .scale_log2 = scale * kLog2E,
                                  .num_tiles = 0};
  if (q.size(2) == 64) {
    launch_backward<64>(op, operands, delta, saved.out, kv.max_query_rows, ctx);
  } else {
    launch_backward<128>(op, operands, delta, saved.out, kv.max_query_rows, ctx);
  }
}

}  // namespace grpo::ops
