#include "app/launch/phase_board.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>

#include "model/core/errors.h"

namespace grpo::app {

// Two entries in turn: the one that `last` names is complete.
struct PhaseBoard::Slots {
  struct Slot {
    char phase[48] = "setup";
    int64_t step = 0;
  };
  Slot slots[2];
  std::atomic<uint32_t> last{0};
  static_assert(std::atomic<uint32_t>::is_always_lock_free, "shared between processes");
};

PhaseBoard::PhaseBoard(int num_ranks) : num_ranks_(num_ranks) {
  CHECK(num_ranks >= 1, "{} ranks", num_ranks);
  const size_t size_bytes = static_cast<size_t>(num_ranks) * sizeof(Slots);
  void* memory =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ExitCode::kOther, fmt::format("cannot share {} bytes with local ranks: {}",
                                              size_bytes, std::strerror(errno)));
  }
  slots_ = static_cast<Slots*>(memory);
  for (int rank = 0; rank < num_ranks; ++rank) new (slots_ + rank) Slots();
}

PhaseBoard::~PhaseBoard() { ::munmap(slots_, static_cast<size_t>(num_ranks_) * sizeof(Slots)); }

void PhaseBoard::write(int rank, const std::string& phase, int64_t step) {
  CHECK(rank >= 0 && rank < num_ranks_, "rank {} of {}", rank, num_ranks_);
  Slots& slots = slots_[rank];
  const uint32_t next = 1 - slots.last.load(std::memory_order_relaxed);
  Slots::Slot& slot = slots.slots[next];
  const size_t length = std::min(phase.size(), sizeof(slot.phase) - 1);
  std::memcpy(slot.phase, phase.data(), length);
  slot.phase[length] = '\0';
  slot.step = step;
  slots.last.store(next, std::memory_order_release);
}

PhaseBoard::Entry PhaseBoard::read(int rank) const {
  CHECK(rank >= 0 && rank < num_ranks_, "rank {} of {}", rank, num_ranks_);
  const Slots& slots = slots_[rank];
  const Slots::Slot& slot = slots.slots[slots.last.load(std::memory_order_acquire)];
  return {.phase = slot.phase, .step = slot.step};
}

}  // namespace grpo::app
