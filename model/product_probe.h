// Whether every kind of product that a model's forward makes gives a row the same bits among any
// number of rows: the start-up check of exact numerics (numerics contract 1).
#pragma once

#include "model/core/parameter_store.h"
#include "model/ops/op_context.h"
#include "model/transformer_parameters.h"

namespace grpo::model {

// The most rows that a product of the run can have.
struct ProbeRows {
  int64_t layers;  // of a decoder layer's products
  int64_t head;    // of the LM head's
};

// Runs ops::check_linear_exactness once for each distinct shape of (weight, bias, result), in a
// pass of the store's own, and returns how many there are. `schedule` is the transformer's
// score_schedule(). Throws CudaError that names shape and algorithm when bits differ.
int64_t probe_products(const TransformerParameters& parameters, ParameterStore& store,
                       const UseSchedule& schedule, const ProbeRows& rows, OpContext& ctx);

}  // namespace grpo::model
