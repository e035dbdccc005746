// PhaseBoard: what each local rank is doing, where the process that started it can still read it
// after the rank died.
#pragma once

#include <cstdint>
#include <string>

namespace grpo::app {

// Memory shared by a process and the children it forks later. Each rank writes its own entry, from
// one thread at a time; any process reads. A rank that dies in the middle of a write leaves the
// entry before it.
class PhaseBoard {
 public:
  struct Entry {
    std::string phase = "setup";
    int64_t step = 0;
  };

  explicit PhaseBoard(int num_ranks);
  PhaseBoard(const PhaseBoard&) = delete;
  PhaseBoard& operator=(const PhaseBoard&) = delete;
  ~PhaseBoard();

  // Phases longer than 47 bytes are cut off.
  void write(int rank, const std::string& phase, int64_t step);
  Entry read(int rank) const;

 private:
  struct Slots;

  int num_ranks_;
  Slots* slots_;  // one a rank
};

}  // namespace grpo::app
