// A world for rehearsals: one rank's place among others that are not there. Nothing is sent.
#pragma once

#include <memory>

#include "parallel/comm/world.h"

namespace grpo::parallel {

// Collectives check their arguments and move nothing on a rehearsal device. Host values are
// gathered as if every member had this rank's, and sums are left as they are.
std::unique_ptr<World> make_rehearsal_world(int rank, int size);

}  // namespace grpo::parallel
