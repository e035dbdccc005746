// One block a copied page and plane.
#include "model/core/device_cuda.h"
#include "model/ops/cuda/element_groups.cuh"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/workspace_array.h"

namespace grpo::ops::cuda {

namespace {

constexpr int kCopyThreads = 128;

// planes [N, num_pages, page_size] in units.
template <typename Unit>
__global__ void __launch_bounds__(kCopyThreads)
    copy_pages_kernel(Unit* planes, const PageCopy* copies, int64_t num_copies, int64_t num_pages,
                      int64_t page_size) {
  const PageCopy copy = copies[blockIdx.x % num_copies];
  Unit* const plane = planes + blockIdx.x / num_copies * num_pages * page_size;
  const Unit* const from = plane + copy.source * page_size;
  Unit* const to = plane + copy.destination * page_size;
  for (int64_t at = threadIdx.x; at < page_size; at += kCopyThreads) to[at] = from[at];
}

}  // namespace

void copy_pages(const Tensor& planes, std::span<const PageCopy> copies, OpContext& ctx) {
  const char* op = "copy_pages";
  if (copies.empty() || planes.num_elements() == 0) return;
  const Workspace::Scope scope(ctx.workspace);
  const auto num_copies = static_cast<int64_t>(copies.size());
  auto* device_copies = workspace_array<PageCopy>(ctx, num_copies);
  cuda_copy_bytes(device_copies, ctx.device, copies.data(), Device::cpu(), copies.size_bytes(),
                  ctx.stream);
  dispatch_device_type(op, planes.dtype(), [&]<typename D>(D) {
    constexpr int kWidth = kGroupWidth<D>;
    D* const data = device_data<D>(planes);
    const int64_t size = planes.size(2);
    const int64_t blocks = planes.size(0) * num_copies;
    if (size % kWidth == 0 && is_aligned<kWidth>(data)) {
      launch(op, copy_pages_kernel<uint4>, blocks, kCopyThreads, ctx,
             reinterpret_cast<uint4*>(data), device_copies, num_copies, planes.size(1),
             size / kWidth);
    } else {
      launch(op, copy_pages_kernel<D>, blocks, kCopyThreads, ctx, data, device_copies, num_copies,
             planes.size(1), size);
    }
  });
}

}  // namespace grpo::ops::cuda
