// The merge rules of a byte-pair encoding and the algorithm that applies them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace grpo::model {

struct BpeMerge {
  uint32_t rank;      // position in the list of merges: lower merges first
  int32_t merged_id;  // token that replaces the pair; -1 in an empty slot
};

// (left id, right id) -> merge, in one flat table. Immutable once filled; then thread-safe.
class BpeMergeTable {
 public:
  explicit BpeMergeTable(size_t num_merges);

  // A pair that is listed again takes its later rank.
  void insert(int32_t left, int32_t right, BpeMerge merge);
  const BpeMerge* find(int32_t left, int32_t right) const;  // null when the pair does not merge

 private:
  struct Slot {
    uint64_t pair = 0;
    BpeMerge merge{0, -1};
  };
  size_t slot_of(uint64_t pair) const;

  std::vector<Slot> slots_;  // open addressing, at most half full
  unsigned shift_;
};

// Applies merges to one word at a time, keeping its memory between words. One thread at a time.
class BpeMerger {
 public:
  explicit BpeMerger(const BpeMergeTable& table) : table_(table) {}

  // Merges until no pair is in the table, always the pair of lowest rank, the leftmost of equals,
  // and appends the tokens. O(n log n). `symbols` holds fewer than 2^31 ids.
  void merge(std::span<const int32_t> symbols, std::vector<int32_t>& tokens);

 private:
  struct Symbol {
    int32_t id;  // -1: merged into its left neighbour
    int32_t previous;
    int32_t next;  // -1: none
  };
  // A pair that may merge: rank * 2^32 + position of its left symbol, so that numbers sort as
  // candidates do.
  using Candidate = uint64_t;

  const BpeMerge* merge_at(
      int32_t position) const;  // null when the pair at a position does not merge
  void push_candidate_at(int32_t position);
  void apply(Candidate candidate);

  const BpeMergeTable& table_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace grpo::model
