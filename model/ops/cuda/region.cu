// Blocks of rows' parts; integer sums, so that no order of the atomic additions shows.
#include <vector>

#include "model/core/device_cuda.h"
#include "model/ops/cuda/element_groups.cuh"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/workspace_array.h"

namespace grpo::ops::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kWidth = 8;  // elements a thread takes of a row
constexpr int kRowsPerBlock = 8;
constexpr int64_t kColumnsPerBlock = int64_t{kThreads} * kWidth;

// One region, or a pair of equal size, of a call.
struct Task {
  void* to;  // first element; null for a fingerprint
  const void* from;
  int64_t to_stride;
  int64_t from_stride;
  int64_t num_rows;
  int64_t num_cols;
  int64_t first_block;  // of the grid
  LogicalPlace place;   // of a fingerprint
  unsigned blocks_per_row;
  bool aligned;  // every group of every row can be accessed as a packet
};

__device__ inline uint32_t bits_of(float value) { return __float_as_uint(value); }
__device__ inline uint32_t bits_of(__nv_bfloat16 value) { return __bfloat16_as_ushort(value); }

template <typename To, typename From>
__device__ inline To as(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else {
    return from_float<To>(to_float(value));
  }
}

// counter_rng.h's, on the device.
__device__ inline uint64_t mix_bits_device(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return value ^ (value >> 31);
}

// Adds the block's sum of `value` to *total; every thread of the block calls it.
__device__ inline void add_block_sum(unsigned long long* total, unsigned long long value) {
  __shared__ unsigned long long sums[kThreads / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int warp = 1; warp < kThreads / 32; ++warp) value += sums[warp];
  if (value != 0) atomicAdd(total, value);
}

// The task of this block: the last whose first block is not behind it.
__device__ inline const Task& own_task(const Task* tasks, int num_tasks) {
  int low = 0;
  int high = num_tasks - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (tasks[middle].first_block <= static_cast<int64_t>(blockIdx.x)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return tasks[low];
}

// Calls body(row, first column, count) for this thread's groups: the block has kRowsPerBlock rows
// and kColumnsPerBlock columns of its task.
template <typename Body>
__device__ inline void for_own_groups(const Task& task, const Body& body) {
  const int64_t block = static_cast<int64_t>(blockIdx.x) - task.first_block;
  const int64_t begin = block / task.blocks_per_row * kRowsPerBlock;
  const int64_t first =
      block % task.blocks_per_row * kColumnsPerBlock + static_cast<int64_t>(threadIdx.x) * kWidth;
  if (first >= task.num_cols) return;
  const int64_t left = task.num_cols - first;
  const int count = left < kWidth ? static_cast<int>(left) : kWidth;
#pragma unroll 4
  for (int r = 0; r < kRowsPerBlock; ++r) {
    if (begin + r < task.num_rows) body(begin + r, first, count);
  }
}

template <typename To, typename From>
__global__ void __launch_bounds__(kThreads)
    copy_regions_kernel(const Task* tasks, int num_tasks, unsigned long long* num_changed) {
  const Task task = own_task(tasks, num_tasks);
  unsigned long long changed = 0;
  for_own_groups(task, [&](int64_t row, int64_t first, int count) {
    To* place = static_cast<To*>(task.to) + row * task.to_stride + first;
    const From* from = static_cast<const From*>(task.from) + row * task.from_stride + first;
    const auto source = load_packet<kWidth>(from, count, task.aligned);
    Packet<To, kWidth> value = load_packet<kWidth>(place, count, task.aligned);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const To before = value.elements[i];
      value.elements[i] = as<To>(source.elements[i]);
      changed += i < count && bits_of(before) != bits_of(value.elements[i]) ? 1 : 0;
    }
    store_packet<kWidth>(place, value, count, task.aligned);
  });
  if (num_changed != nullptr) add_block_sum(num_changed, changed);
}

template <typename As, typename From>
__global__ void __launch_bounds__(kThreads)
    fingerprints_kernel(unsigned long long* total, const Task* tasks, int num_tasks) {
  constexpr uint64_t kColumnFactor = 0x9E3779B97F4A7C15ull;
  const Task task = own_task(tasks, num_tasks);
  unsigned long long sum = 0;
  for_own_groups(task, [&](int64_t row, int64_t first, int count) {
    const From* from = static_cast<const From*>(task.from) + row * task.from_stride + first;
    const auto values = load_packet<kWidth>(from, count, task.aligned);
    const uint64_t row_key =
        mix_bits_device(task.place.tensor_key + static_cast<uint64_t>(task.place.row + row));
    uint64_t column_key = static_cast<uint64_t>(task.place.col + first) * kColumnFactor;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const uint64_t bits = bits_of(as<As>(values.elements[i]));
      if (i < count) sum += mix_bits_device(row_key ^ (column_key + bits));
      column_key += kColumnFactor;
    }
  });
  add_block_sum(total, sum);
}

template <typename D>
D* first_element(const MatrixRegion& region) {
  return device_data<D>(region.matrix) + region.row * region.matrix.size(1) + region.col;
}

template <typename D>
bool has_aligned_groups(const MatrixRegion& region) {
  return is_aligned<kWidth>(first_element<D>(region)) && region.matrix.size(1) % kWidth == 0;
}

// The tasks of one launch, put end to end in a grid.
class TaskList {
 public:
  template <typename From>
  Task& add(const MatrixRegion& source) {
    const auto blocks_per_row = static_cast<unsigned>(ceil_div(source.num_cols, kColumnsPerBlock));
    tasks_.push_back({.to = nullptr,
                      .from = first_element<From>(source),
                      .to_stride = 0,
                      .from_stride = source.matrix.size(1),
                      .num_rows = source.num_rows,
                      .num_cols = source.num_cols,
                      .first_block = num_blocks_,
                      .place = {},
                      .blocks_per_row = blocks_per_row,
                      .aligned = has_aligned_groups<From>(source)});
    num_blocks_ += ceil_div(source.num_rows, kRowsPerBlock) * blocks_per_row;
    return tasks_.back();
  }

  int64_t num_blocks() const { return num_blocks_; }
  int size() const { return static_cast<int>(tasks_.size()); }
  // In the enclosing Workspace::Scope.
  const Task* upload(OpContext& ctx) const {
    auto* tasks = workspace_array<Task>(ctx, static_cast<int64_t>(tasks_.size()));
    cuda_copy_bytes(tasks, ctx.device, tasks_.data(), Device::cpu(), tasks_.size() * sizeof(Task),
                    ctx.stream);
    return tasks;
  }

 private:
  std::vector<Task> tasks_;
  int64_t num_blocks_ = 0;
};

bool is_empty(const MatrixRegion& region) { return region.num_rows == 0 || region.num_cols == 0; }

unsigned long long* counter(const Tensor& tensor) {
  return tensor.is_absent() ? nullptr : static_cast<unsigned long long*>(tensor.raw());
}

template <typename To, typename From>
void copy_regions_of(std::span<const RegionCopy> copies, const Tensor& num_changed,
                     OpContext& ctx) {
  TaskList list;
  for (const auto& [destination, source] : copies) {
    if (is_empty(source)) continue;
    Task& task = list.add<From>(source);
    task.to = first_element<To>(destination);
    task.to_stride = destination.matrix.size(1);
    task.aligned = task.aligned && has_aligned_groups<To>(destination);
  }
  if (list.size() == 0) return;
  const Workspace::Scope scope(ctx.workspace);
  launch("copy_regions", copy_regions_kernel<To, From>, list.num_blocks(), kThreads, ctx,
         list.upload(ctx), list.size(), counter(num_changed));
}

template <typename As, typename From>
void add_fingerprints_of(const Tensor& sum, std::span<const PlacedRegion> regions, OpContext& ctx) {
  TaskList list;
  for (const auto& [region, place] : regions) {
    if (!is_empty(region)) list.add<From>(region).place = place;
  }
  if (list.size() == 0) return;
  const Workspace::Scope scope(ctx.workspace);
  launch("add_fingerprints", fingerprints_kernel<As, From>, list.num_blocks(), kThreads, ctx,
         counter(sum), list.upload(ctx), list.size());
}

// Calls function(run) for the longest runs of neighbours of equal types.
template <typename Item, typename Same, typename Function>
void for_each_run(std::span<const Item> items, const Same& same, const Function& function) {
  for (size_t begin = 0; begin < items.size();) {
    size_t end = begin + 1;
    while (end < items.size() && same(items[begin], items[end])) ++end;
    function(items.subspan(begin, end - begin));
    begin = end;
  }
}

}  // namespace

void copy_regions(std::span<const RegionCopy> copies, const Tensor& num_changed, OpContext& ctx) {
  const char* op = "copy_regions";
  const auto same = [](const RegionCopy& a, const RegionCopy& b) {
    return a.destination.matrix.dtype() == b.destination.matrix.dtype() &&
           a.source.matrix.dtype() == b.source.matrix.dtype();
  };
  for_each_run(copies, same, [&](std::span<const RegionCopy> run) {
    dispatch_device_type(op, run[0].destination.matrix.dtype(), [&]<typename To>(To) {
      dispatch_device_type(op, run[0].source.matrix.dtype(), [&]<typename From>(From) {
        copy_regions_of<To, From>(run, num_changed, ctx);
      });
    });
  });
}

void add_fingerprints(const Tensor& sum, std::span<const PlacedRegion> regions, DType dtype,
                      OpContext& ctx) {
  const char* op = "add_fingerprints";
  const auto same = [](const PlacedRegion& a, const PlacedRegion& b) {
    return a.region.matrix.dtype() == b.region.matrix.dtype();
  };
  for_each_run(regions, same, [&](std::span<const PlacedRegion> run) {
    dispatch_device_type(op, dtype, [&]<typename As>(As) {
      dispatch_device_type(op, run[0].region.matrix.dtype(), [&]<typename From>(From) {
        add_fingerprints_of<As, From>(sum, run, ctx);
      });
    });
  });
}

}  // namespace grpo::ops::cuda
