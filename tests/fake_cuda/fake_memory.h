// A CUDA device for tests on machines without one: its memory is the host's, at addresses that the
// host cannot touch. Operators run the CPU reference on a second mapping of that memory, so
// whatever else reads or writes tensor contents directly ends the test by a signal, as it would go
// wrong on a GPU.
#pragma once

#include <string>

#include "model/core/tensor.h"
#include "model/ops/op_context.h"

namespace grpo::testing {

// The same memory as a CPU tensor; absent tensors and those of the CPU as they are.
Tensor on_host(const Tensor& tensor);

// How many devices there seem to be: 8 with GRPO_TEST_DEVICE=cuda, else 0, until told otherwise.
// They share one memory.
void set_fake_device_count(int count);

// What why_no_matrix_library() says; "" until told otherwise.
void set_fake_matrix_library_problem(const std::string& problem);

// For the CPU reference behind an operator of the fake device; of the calling thread.
OpContext& host_context();

}  // namespace grpo::testing
