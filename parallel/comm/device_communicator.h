// Communicator for groups whose members have a device each: tensors of the CPU go the host's way,
// tensors of the device go by the transport.
#pragma once

#include <memory>

#include "model/core/buffer.h"
#include "model/core/communicator.h"
#include "parallel/comm/device_link.h"

namespace grpo::parallel {

// Scratch of sums comes from `allocator`, which outlives the communicator and whose device the
// transport serves. Sums are made by an operator in rank order, so that they are those of the CPU's
// communicator and no choice of the library beneath can change a bit.
std::shared_ptr<Communicator> make_device_communicator(std::shared_ptr<Communicator> host,
                                                       std::shared_ptr<DeviceTransport> transport,
                                                       Allocator& allocator);

// A transport that moves nothing, for rehearsals.
std::shared_ptr<DeviceTransport> make_rehearsal_transport();

}  // namespace grpo::parallel
