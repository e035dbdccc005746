// Refit: moves the trained weights into the generation model, in place, and proves that they
// arrived.
#pragma once

#include <cstdint>

#include "parallel/refit/refit_plan.h"
#include "parallel/store/sharded_parameter_store.h"

namespace grpo::parallel {

struct RefitReport {
  int64_t bytes;             // written into this rank's generation model
  int64_t remote_bytes;      // of them, received from other ranks (as on the wire)
  int64_t changed_elements;  // whose bits differ from before, on this rank
  int64_t num_windows;
  double seconds;
  uint64_t source_fingerprint;       // of the trained logical weights, in the destination's dtype
  uint64_t destination_fingerprint;  // read from this rank's memory after the transfer

  bool fingerprint_ok() const { return source_fingerprint == destination_fingerprint; }
};

// Sends one element from every rank to every other on the destination's device: connections that a
// library makes at the first message are made now, not in the first refit. Collective over `world`.
void connect_for_refit(ShardedParameterStore& destination, Communicator& world);

// Collective over `world`, the group that both stores' ranks form. Values convert to the
// destination's dtype. The destination's version grows, which makes caches stale. Throws
// InternalError when the ranks' plans differ or a store is not the one planned for (dtype, shapes);
// CommError from transfers. A fingerprint that does not match is reported, not thrown: the caller
// decides.
RefitReport refit(const RefitPlan& plan, const ShardedParameterStore& source,
                  ShardedParameterStore& destination, Communicator& world);

}  // namespace grpo::parallel
