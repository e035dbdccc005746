// T tokens, D model. One block of kRowThreads a row; thread i owns the groups i, i + kRowThreads,
// ... of the row and adds their elements in ascending order, whatever T is. The backward of rows
// that a block's registers can hold takes them in turn, and the weight's gradient on the way.
#include <algorithm>

#include "model/ops/cuda/block_sum.cuh"
#include "model/ops/cuda/column_sums.cuh"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/workspace_array.h"

namespace grpo::ops::cuda {

namespace {

constexpr int kRowThreads = 128;

// Calls body(first, count) for each of this thread's groups of a row.
template <int kWidth, typename Body>
__device__ inline void for_own_groups(int64_t size, const Body& body) {
  for (int64_t first = static_cast<int64_t>(threadIdx.x) * kWidth; first < size;
       first += kRowThreads * kWidth) {
    const int64_t left = size - first;
    body(first, left < kWidth ? static_cast<int>(left) : kWidth);
  }
}

template <typename D>
struct NormForward {
  D* out;           // [T, D]
  float* rstd;      // [T] or null
  const D* x;       // [T, D]
  const D* addend;  // [T, D], to be added to x; or null
  D* sum;           // [T, D], where there is an addend: what is normed
  const D* weight;  // [D]
  int64_t size;     // D
  float epsilon;
  bool aligned;
};

// A group of a sum: added up, rounded and stored.
template <typename D, int kWidth>
__device__ inline void add_up(Packet<D, kWidth>& x, const Packet<D, kWidth>& addend, D* sum,
                              int count, bool aligned) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    x.elements[i] = from_float<D>(__fadd_rn(to_float(x.elements[i]), to_float(addend.elements[i])));
  }
  store_packet<kWidth>(sum, x, count, aligned);
}

// kRows rows a block, each by itself. Their first groups, in most models the only ones, stay in
// registers.
template <typename D, int kRows>
__global__ void __launch_bounds__(kRowThreads)
    rms_norm_forward_kernel(NormForward<D> op, int64_t num_rows) {
  constexpr int kWidth = kGroupWidth<D>;
  __shared__ float scratch[kRows][kRowThreads / 32];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t own = static_cast<int64_t>(threadIdx.x) * kWidth;
  const auto count_of = [&](int64_t first) {
    const int64_t left = op.size - first;
    return left < 0 ? 0 : left < kWidth ? static_cast<int>(left) : kWidth;
  };
  Packet<D, kWidth> kept[kRows];
  Packet<D, kWidth> addends[kRows];
  const auto for_first_groups = [&](const auto& body) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool inside = begin + r < num_rows;
      body(r, (inside ? begin + r : 0) * op.size + own, inside ? count_of(own) : 0);
    }
  };
  for_first_groups([&](int r, int64_t at, int count) {
    kept[r] = load_packet<kWidth>(op.x + at, count, op.aligned);
    if (op.addend != nullptr) addends[r] = load_packet<kWidth>(op.addend + at, count, op.aligned);
  });
  if (op.addend != nullptr) {
    for_first_groups([&](int r, int64_t at, int count) {
      add_up(kept[r], addends[r], op.sum + at, count, op.aligned);
    });
  }
  float kept_weight[kWidth];
  load_group(kept_weight, op.weight + own, count_of(own), op.aligned);
  float squares[kRows] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (begin + r >= num_rows) continue;
    const auto add_squares = [&](const Packet<D, kWidth>& packet) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float x = to_float(packet.elements[i]);
        squares[r] = __fmaf_rn(x, x, squares[r]);
      }
    };
    add_squares(kept[r]);
    for (int64_t first = own + kRowThreads * kWidth; first < op.size;
         first += kRowThreads * kWidth) {
      const int64_t at = (begin + r) * op.size + first;
      const int count = count_of(first);
      Packet<D, kWidth> packet = load_packet<kWidth>(op.x + at, count, op.aligned);
      if (op.addend != nullptr) {
        add_up(packet, load_packet<kWidth>(op.addend + at, count, op.aligned), op.sum + at, count,
               op.aligned);
      }
      add_squares(packet);
    }
  }
  block_sums<kRowThreads>(squares, scratch);
  const D* normed = op.addend == nullptr ? op.x : op.sum;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t t = begin + r;
    if (t >= num_rows) continue;
    const float mean_square = __fdiv_rn(squares[r], static_cast<float>(op.size));
    const float scale = __frcp_rn(__fsqrt_rn(__fadd_rn(mean_square, op.epsilon)));
    if (op.rstd != nullptr && threadIdx.x == 0) op.rstd[t] = scale;
    const auto store = [&](float(&x)[kWidth], const float(&weight)[kWidth], int64_t first) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) x[i] = __fmul_rn(__fmul_rn(x[i], scale), weight[i]);
      store_group(op.out + t * op.size + first, x, count_of(first), op.aligned);
    };
    float x[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x[i] = to_float(kept[r].elements[i]);
    store(x, kept_weight, own);
    for (int64_t first = own + kRowThreads * kWidth; first < op.size;
         first += kRowThreads * kWidth) {
      float weight[kWidth];
      load_group(x, normed + t * op.size + first, count_of(first), op.aligned);
      load_group(weight, op.weight + first, count_of(first), op.aligned);
      store(x, weight, first);
    }
  }
}

template <typename D>
struct NormBackward {
  D* dx;              // [T, D]
  const D* dout;      // [T, D]
  const D* x;         // [T, D]
  const D* weight;    // [D]
  const float* rstd;  // [T]
  int64_t size;       // D
  bool accumulate;
  bool aligned;
};

// With g = dout * weight and n = x * rstd: dx = rstd * (g - n * mean(g n)).
template <typename D>
__global__ void __launch_bounds__(kRowThreads) rms_norm_backward_kernel(NormBackward<D> op) {
  constexpr int kWidth = kGroupWidth<D>;
  __shared__ float scratch[1][kRowThreads / 32];
  const int64_t at = blockIdx.x * op.size;
  const float scale = op.rstd[blockIdx.x];
  const auto load = [&](float(&g)[kWidth], float(&n)[kWidth], int64_t first, int count) {
    float weight[kWidth];
    load_group(g, op.dout + at + first, count, op.aligned);
    load_group(n, op.x + at + first, count, op.aligned);
    load_group(weight, op.weight + first, count, op.aligned);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      g[i] = __fmul_rn(g[i], weight[i]);
      n[i] = __fmul_rn(n[i], scale);
    }
  };
  float products = 0.0f;
  for_own_groups<kWidth>(op.size, [&](int64_t first, int count) {
    float g[kWidth];
    float n[kWidth];
    load(g, n, first, count);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) products = __fmaf_rn(g[i], n[i], products);
  });
  const float mean =
      __fdiv_rn(block_sum<kRowThreads>(products, scratch), static_cast<float>(op.size));
  for_own_groups<kWidth>(op.size, [&](int64_t first, int count) {
    float g[kWidth];
    float n[kWidth];
    load(g, n, first, count);
    float before[kWidth] = {};
    if (op.accumulate) load_group(before, op.dx + at + first, count, op.aligned);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      g[i] = __fmul_rn(scale, __fmaf_rn(-n[i], mean, g[i]));
      if (op.accumulate) g[i] = __fadd_rn(before[i], g[i]);
    }
    store_group(op.dx + at + first, g, count, op.aligned);
  });
}

// The threads of a team hold a row, a group each.
constexpr int kMaxTeam = 512;
constexpr int kResidentThreads = 768;  // of a multiprocessor: 80 registers are left for each
// Few enough blocks to run at once, and few partial sums to join.
constexpr int64_t kMostTeams = 768;
constexpr int64_t kLeastRowsPerTeam = 4;

// A block is a team; block b takes rows_per_team rows from b rows_per_team on, in turn, and reads
// the next while it works on one. Besides dx, the block's part of dweight, rows in ascending order.
// dx may be dout.
template <typename D, int kTeam>
__global__ void __launch_bounds__(kTeam, kResidentThreads / kTeam)
    team_rows_backward_kernel(NormBackward<D> op, float* partial /* [blocks, D] */,
                              int64_t num_rows, int64_t rows_per_team) {
  constexpr int kWidth = kGroupWidth<D>;
  __shared__ float warp_sums[2][kTeam / 32];  // of a row and, in turn, of the next
  const int first = static_cast<int>(threadIdx.x) * kWidth;
  const int count = max(0, min(kWidth, static_cast<int>(op.size) - first));
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  struct Row {
    Packet<D, kWidth> dout;
    Packet<D, kWidth> x;
    Packet<D, kWidth> before;
    float scale;
  };
  const auto load = [&](int64_t t) {
    Row row{};
    row.scale = op.rstd[t];
    if (count > 0) {
      const int64_t at = t * op.size + first;
      row.dout = load_packet<kWidth>(op.dout + at, count, op.aligned);
      row.x = load_packet<kWidth>(op.x + at, count, op.aligned);
      if (op.accumulate) row.before = load_packet<kWidth>(op.dx + at, count, op.aligned);
    }
    return row;
  };
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * rows_per_team;
  const int64_t end = begin + rows_per_team < num_rows ? begin + rows_per_team : num_rows;
  Packet<D, kWidth> weight{};
  if (count > 0) weight = load_packet<kWidth>(op.weight + first, count, op.aligned);
  float sums[kWidth] = {};
  Row next = load(begin);
  for (int64_t t = begin; t < end; ++t) {
    const Row row = next;
    if (t + 1 < end) next = load(t + 1);
    float products = 0.0f;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float d = to_float(row.dout.elements[i]);
      const float n = __fmul_rn(to_float(row.x.elements[i]), row.scale);
      products = __fmaf_rn(__fmul_rn(d, to_float(weight.elements[i])), n, products);
      sums[i] = __fmaf_rn(d, n, sums[i]);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      products = __fadd_rn(products, __shfl_xor_sync(0xffffffffu, products, distance));
    float* of_row = warp_sums[(t - begin) % 2];
    if (threadIdx.x % 32 == 0) of_row[threadIdx.x / 32] = products;
    __syncthreads();
    products = of_row[0];
    for (int warp = 1; warp < num_warps; ++warp) products = __fadd_rn(products, of_row[warp]);
    const float mean = __fdiv_rn(products, static_cast<float>(op.size));
    if (count == 0) continue;
    float dx[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float g = __fmul_rn(to_float(row.dout.elements[i]), to_float(weight.elements[i]));
      const float n = __fmul_rn(to_float(row.x.elements[i]), row.scale);
      dx[i] = __fmul_rn(row.scale, __fmaf_rn(-n, mean, g));
      if (op.accumulate) dx[i] = __fadd_rn(to_float(row.before.elements[i]), dx[i]);
    }
    store_group(op.dx + t * op.size + first, dx, count, op.aligned);
  }
  if (count > 0) {
    store_group(partial + static_cast<int64_t>(blockIdx.x) * op.size + first, sums, count,
                op.aligned);
  }
}

// dweight = sum over t of dout * n.
template <typename D>
struct WeightGradientTerm {
  static constexpr int kWidth = kGroupWidth<D>;
  const D* dout;
  const D* x;
  const float* rstd;
  int64_t size;
  bool aligned;

  __device__ void add(float (&sums)[kWidth], int64_t t, int64_t first, int count) const {
    float d[kWidth];
    float n[kWidth];
    load_group(d, dout + t * size + first, count, aligned);
    load_group(n, x + t * size + first, count, aligned);
    const float scale = rstd[t];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i] = __fmaf_rn(d[i], __fmul_rn(n[i], scale), sums[i]);
  }
};

template <typename D>
void team_rows_backward(const char* op, const NormBackward<D>& norm, const Tensor& dweight,
                        bool accumulate, int64_t num_rows, OpContext& ctx) {
  const int64_t groups = ceil_div(norm.size, int64_t{kGroupWidth<D>});
  const int64_t team = ceil_div(groups, int64_t{32}) * 32;
  const int64_t rows_per_team = std::max(kLeastRowsPerTeam, ceil_div(num_rows, kMostTeams));
  const int64_t blocks = ceil_div(num_rows, rows_per_team);
  const Workspace::Scope scope(ctx.workspace);
  auto* partial = workspace_array<float>(ctx, blocks * norm.size);
  const auto kernel = team <= 128   ? team_rows_backward_kernel<D, 128>
                      : team <= 256 ? team_rows_backward_kernel<D, 256>
                                    : team_rows_backward_kernel<D, kMaxTeam>;
  launch(op, kernel, blocks, static_cast<int>(team), ctx, norm, partial, num_rows, rows_per_team);
  join_column_chunks(op, dweight, partial, blocks, accumulate, ctx);
}

// Of x, or of x + addend where there is an addend.
void norm_forward(const char* op, const NormedSum& out, const Tensor& x, const Tensor& addend,
                  const Tensor& weight, float epsilon, OpContext& ctx) {
  const int64_t size = x.size(1);
  dispatch_device_type(op, x.dtype(), [&]<typename D>(D) {
    constexpr int kWidth = kGroupWidth<D>;
    NormForward<D> norm{device_data<D>(out.normed),
                        out.rstd.is_absent() ? nullptr : out.rstd.data<float>(),
                        device_data<D>(x),
                        device_data<D>(addend),
                        device_data<D>(out.sum),
                        device_data<D>(weight),
                        size,
                        epsilon,
                        false};
    norm.aligned = size % kWidth == 0 && is_aligned<kWidth>(norm.out) &&
                   is_aligned<kWidth>(norm.x) && is_aligned<kWidth>(norm.addend) &&
                   is_aligned<kWidth>(norm.sum) && is_aligned<kWidth>(norm.weight);
    // Several rows a block keep more of memory busy, where there are enough for all blocks.
    constexpr int kRows = 4;
    constexpr int64_t kManyRows = 4096;
    const int64_t rows = x.size(0);
    if (rows >= kManyRows) {
      launch(op, rms_norm_forward_kernel<D, kRows>, ceil_div(rows, kRows), kRowThreads, ctx, norm,
             rows);
    } else {
      launch(op, rms_norm_forward_kernel<D, 1>, rows, kRowThreads, ctx, norm, rows);
    }
  });
}

}  // namespace

void rms_norm_forward(const Tensor& out, const Tensor& rstd, const Tensor& x, const Tensor& weight,
                      float epsilon, OpContext& ctx) {
  norm_forward("rms_norm_forward", {.sum = {}, .normed = out, .rstd = rstd}, x, Tensor(), weight,
               epsilon, ctx);
}

void residual_rms_norm_forward(const NormedSum& out, const Tensor& x, const Tensor& addend,
                               const Tensor& weight, float epsilon, OpContext& ctx) {
  norm_forward("residual_rms_norm_forward", out, x, addend, weight, epsilon, ctx);
}

void rms_norm_backward(const RmsNormGradients& gradients, const Tensor& dout, const Tensor& x,
                       const Tensor& weight, const Tensor& rstd, OpContext& ctx) {
  const char* op = "rms_norm_backward";
  const int64_t size = x.size(1);
  dispatch_device_type(op, x.dtype(), [&]<typename D>(D) {
    constexpr int kWidth = kGroupWidth<D>;
    NormBackward<D> norm{device_data<D>(gradients.dx),
                         device_data<D>(dout),
                         device_data<D>(x),
                         device_data<D>(weight),
                         rstd.data<float>(),
                         size,
                         gradients.accumulate_dx,
                         false};
    norm.aligned = size % kWidth == 0 && is_aligned<kWidth>(norm.dx) &&
                   is_aligned<kWidth>(norm.dout) && is_aligned<kWidth>(norm.x) &&
                   is_aligned<kWidth>(norm.weight);
    if (size <= int64_t{kMaxTeam} * kWidth) {
      team_rows_backward(op, norm, gradients.dweight, gradients.accumulate_dweight, x.size(0), ctx);
      return;
    }
    // Before dx, which may lie where dout does.
    column_sums(op, gradients.dweight,
                WeightGradientTerm<D>{norm.dout, norm.x, norm.rstd, size, norm.aligned}, x.size(0),
                gradients.accumulate_dweight, ctx);
    launch(op, rms_norm_backward_kernel<D>, x.size(0), kRowThreads, ctx, norm);
  });
}

}  // namespace grpo::ops::cuda
