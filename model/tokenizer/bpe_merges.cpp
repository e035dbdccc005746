#include "model/tokenizer/bpe_merges.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "model/core/errors.h"

namespace grpo::model {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

uint64_t candidate_key(uint32_t rank, int32_t position) {
  return (uint64_t{rank} << 32) | static_cast<uint32_t>(position);
}

// The heap functions keep the largest on top; the smallest is wanted there.
constexpr std::greater<uint64_t> kComesLater;

}  // namespace

BpeMergeTable::BpeMergeTable(size_t num_merges) {
  const size_t num_slots = std::bit_ceil(2 * num_merges + 2);
  slots_.resize(num_slots);
  shift_ = 64 - static_cast<unsigned>(std::countr_zero(num_slots));
}

size_t BpeMergeTable::slot_of(uint64_t pair) const {
  // Fibonacci hashing: the high bits of the product with 2^64 / golden ratio.
  size_t slot = (pair * 0x9e3779b97f4a7c15u) >> shift_;
  while (slots_[slot].merge.merged_id >= 0 && slots_[slot].pair != pair)
    slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

void BpeMergeTable::insert(int32_t left, int32_t right, BpeMerge merge) {
  const uint64_t pair = pair_key(left, right);
  slots_[slot_of(pair)] = {pair, merge};
}

const BpeMerge* BpeMergeTable::find(int32_t left, int32_t right) const {
  const Slot& slot = slots_[slot_of(pair_key(left, right))];
  return slot.merge.merged_id < 0 ? nullptr : &slot.merge;
}

const BpeMerge* BpeMerger::merge_at(int32_t position) const {
  const Symbol& left = symbols_[static_cast<size_t>(position)];
  if (left.id < 0 || left.next < 0) return nullptr;
  return table_.find(left.id, symbols_[static_cast<size_t>(left.next)].id);
}

void BpeMerger::push_candidate_at(int32_t position) {
  const BpeMerge* merge = merge_at(position);
  if (merge == nullptr) return;
  heap_.push_back(candidate_key(merge->rank, position));
  std::push_heap(heap_.begin(), heap_.end(), kComesLater);
}

void BpeMerger::apply(Candidate candidate) {
  const auto position = static_cast<int32_t>(candidate & 0xffffffffu);
  const BpeMerge* merge = merge_at(position);
  // An entry is stale when its symbols have merged with others since.
  if (merge == nullptr || candidate_key(merge->rank, position) != candidate) return;
  Symbol& left = symbols_[static_cast<size_t>(position)];
  Symbol& right = symbols_[static_cast<size_t>(left.next)];
  left.id = merge->merged_id;
  left.next = right.next;
  right.id = -1;
  if (left.next >= 0) symbols_[static_cast<size_t>(left.next)].previous = position;
  if (left.previous >= 0) push_candidate_at(left.previous);
  push_candidate_at(position);
}

void BpeMerger::merge(std::span<const int32_t> symbols, std::vector<int32_t>& tokens) {
  CHECK(symbols.size() < (size_t{1} << 31), "a word of {} bytes is too long", symbols.size());
  if (symbols.empty()) return;
  const auto count = static_cast<int32_t>(symbols.size());
  symbols_.clear();
  heap_.clear();
  for (int32_t i = 0; i < count; ++i) {
    symbols_.push_back({symbols[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  }
  for (int32_t i = 0; i < count; ++i) {
    const BpeMerge* merge = merge_at(i);
    if (merge != nullptr) heap_.push_back(candidate_key(merge->rank, i));
  }
  std::make_heap(heap_.begin(), heap_.end(), kComesLater);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), kComesLater);
    const Candidate candidate = heap_.back();
    heap_.pop_back();
    apply(candidate);
  }
  for (int32_t i = 0; i >= 0; i = symbols_[static_cast<size_t>(i)].next) {
    tokens.push_back(symbols_[static_cast<size_t>(i)].id);
  }
}

}  // namespace grpo::model
