#include "model/device_context.h"

namespace grpo::model {

DeviceContext::DeviceContext(Device device, const Numerics& numerics)
    : allocator(device),
      matrix_library(device.is_rehearsal ? nullptr : std::make_unique<MatrixLibrary>(device)),
      ctx{device, Stream::none(), workspace, matrix_library.get(), numerics} {}

}  // namespace grpo::model
