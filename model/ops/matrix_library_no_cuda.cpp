// MatrixLibrary in builds without CUDA: nothing uses it there.
#include "model/core/device_cuda.h"
#include "model/ops/matrix_library.h"

namespace grpo {

struct MatrixLibrary::State {};

std::string why_no_matrix_library() { return ""; }

MatrixLibrary::MatrixLibrary(Device device) {
  if (device.kind == DeviceKind::kCuda) check_cuda_device(device);
}

MatrixLibrary::~MatrixLibrary() = default;

void MatrixLibrary::set_candidate_rank(int) {}

std::string MatrixLibrary::describe_latest() const { return ""; }

}  // namespace grpo
