// Communicator over several ranks of a world: every collective is built from the link's messages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/core/communicator.h"
#include "parallel/comm/rank_link.h"

namespace grpo::parallel {

// `ranks`: ascending world ranks, at least two, the link's own among them. `group_id` is the same
// on all members and differs from every other group's of the world.
std::shared_ptr<Communicator> make_group_communicator(std::shared_ptr<RankLink> link,
                                                      std::vector<int> ranks,
                                                      const std::string& name, uint64_t group_id);

// Mixes a value into a 64-bit hash; for group ids and message slots.
uint64_t mix_hash(uint64_t hash, uint64_t value);

}  // namespace grpo::parallel
