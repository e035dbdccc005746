// T rows, V vocabulary. One block of kCutThreads a row selects by rank: an integer that ascends
// with z descending, then with the token, of which a histogram settles one digit after the other.
// Counts and fixed-point weights are integers, so that neither the order of atomic additions nor
// the number of rows shows in a cut.
#include "model/ops/cuda/token_filter.h"

#include <limits>

#include "model/ops/cuda/softmax_row.cuh"
#include "model/ops/workspace_array.h"

namespace grpo::ops::cuda {

namespace {

constexpr int kCutThreads = 512;
constexpr int kCutWarps = kCutThreads / 32;
constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;
constexpr int kBinsPerThread = kBins / kCutThreads;
// Tokens that a row may have left for the rest of the selection to read them from shared memory.
constexpr int kListCapacity = 2048;
// Blocks of a row of which the largest z bound a top-k, and the largest such k.
constexpr int kMaxBoundBlocks = 1024;
constexpr int kGroupsInFlight = 4;

// A rank is the inverted key of z above the token.
using Rank = unsigned long long;
using Mass = unsigned long long;
constexpr int kKeyBits = 32;
constexpr Rank kTokenMask = (Rank{1} << kTokenBits) - 1;
constexpr Rank kLastRank = (Rank{1} << (kKeyBits + kTokenBits)) - 1;

// Lowest bits of the digits: three of the key, then two of the token.
constexpr int kNumDigits = 5;
__device__ inline int digit_shift(int digit) {
  return digit == 0 ? 43 : digit == 1 ? 32 : digit == 2 ? 22 : digit == 3 ? 11 : 0;
}
static_assert(kKeyBits + kTokenBits - kDigitBits == 43 && kTokenBits == 22);

__device__ inline Rank rank_of(float z, int64_t token) {
  const unsigned bits = __float_as_uint(__fadd_rn(z, 0.0f));  // -0 and 0 tie
  const unsigned ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<Rank>(~ascending) << kTokenBits | static_cast<Rank>(token);
}

__device__ inline float scaled_of(Rank rank) {
  const unsigned ascending = ~static_cast<unsigned>(rank >> kTokenBits);
  return __uint_as_float((ascending & 0x80000000u) != 0 ? ascending & 0x7fffffffu : ~ascending);
}

// The next float, towards infinity, of a number that is not -0.
__device__ inline float next_above(float z) {
  const unsigned bits = __float_as_uint(z);
  return __uint_as_float((bits & 0x80000000u) != 0 ? bits - 1 : bits + 1);
}

struct RankRange {
  Rank first;
  Rank last;  // included

  __device__ bool has(Rank rank) const { return first <= rank && rank <= last; }
  __device__ bool covers(const RankRange& other) const {
    return first <= other.first && other.last <= last;
  }
};

struct Bin {
  int index;
  unsigned count;         // tokens in it
  unsigned count_before;  // tokens in lower bins
  Mass mass_before;       // what is selected by, in lower bins
};

struct CutScratch {
  unsigned counts[kBins];
  unsigned mass_low[kBins];
  unsigned mass_high[kBins];
  Rank list[kListCapacity];
  unsigned list_size;
  unsigned warp_counts[kCutWarps];
  Mass warp_masses[kCutWarps];
  Bin bin;
  float block_max[kMaxBoundBlocks];
  float bound;
};

// One row under selection; the same values in all threads of the block.
struct RowUnderCut {
  const SoftmaxRows& rows;
  int64_t t;
  float max;
  CutScratch& scratch;
  RankRange listed;  // tokens that the list holds; none when first > last
};

// Calls body(rank) for every token of the row.
template <typename Body>
__device__ inline void for_each_rank(const RowUnderCut& cut, const Body& body) {
  const SoftmaxRows& rows = cut.rows;
  constexpr int kWidth = kLanesPerThread;
  constexpr int64_t kStep = int64_t{kCutThreads} * kWidth;
  const float* data = rows.logits + cut.t * rows.vocabulary;
  for (int64_t base = static_cast<int64_t>(threadIdx.x) * kWidth; base < rows.vocabulary;
       base += kStep * kGroupsInFlight) {
    float values[kGroupsInFlight][kWidth];
    int counts[kGroupsInFlight];
#pragma unroll
    for (int group = 0; group < kGroupsInFlight; ++group) {
      const int64_t first = base + group * kStep;
      const int64_t left = rows.vocabulary - first;
      counts[group] = left < 0 ? 0 : left < kWidth ? static_cast<int>(left) : kWidth;
      load_group(values[group], data + first, counts[group], rows.aligned);
    }
#pragma unroll
    for (int group = 0; group < kGroupsInFlight; ++group) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (i < counts[group]) {
          body(
              rank_of(__fmul_rn(values[group][i], rows.inv_temperature), base + group * kStep + i));
        }
      }
    }
  }
}

// Calls body(rank) for every token of a range.
template <typename Body>
__device__ inline void for_each_in(const RowUnderCut& cut, const RankRange& range,
                                   const Body& body) {
  if (cut.listed.covers(range)) {
    for (unsigned i = threadIdx.x; i < cut.scratch.list_size; i += kCutThreads) {
      if (range.has(cut.scratch.list[i])) body(cut.scratch.list[i]);
    }
  } else {
    for_each_rank(cut, [&](Rank rank) {
      if (range.has(rank)) body(rank);
    });
  }
}

// exp(z - max) in fixed point.
__device__ inline Mass fixed_point_weight(float z, float max) {
  return __float2ull_rn(__fmul_rn(exp_nonpositive_cuda(__fsub_rn(z, max)), kFixedPointOne));
}

// Fills the histogram of a digit over a range that starts where the digit is 0 and whose higher
// digits agree.
template <bool kByMass>
__device__ inline void fill_bins(RowUnderCut& cut, const RankRange& range, int shift) {
  CutScratch& scratch = cut.scratch;
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kCutThreads) {
    scratch.counts[i] = 0;
    if (kByMass) scratch.mass_low[i] = scratch.mass_high[i] = 0;
  }
  __syncthreads();
  for_each_in(cut, range, [&](Rank rank) {
    const auto bin = static_cast<unsigned>((rank - range.first) >> shift);
    atomicAdd(&scratch.counts[bin], 1u);
    if (kByMass) {
      const Mass mass = fixed_point_weight(scaled_of(rank), cut.max);
      const auto low = static_cast<unsigned>(mass);
      auto high = static_cast<unsigned>(mass >> 32);
      // A sum of low words that wraps is carried by the addition that made it.
      if (low != 0 && atomicAdd(&scratch.mass_low[bin], low) > ~low) ++high;
      if (high != 0) atomicAdd(&scratch.mass_high[bin], high);
    }
  });
  __syncthreads();
}

template <bool kByMass>
__device__ inline Mass bin_mass(const CutScratch& scratch, int bin) {
  if (!kByMass) return scratch.counts[bin];
  return static_cast<Mass>(scratch.mass_high[bin]) << 32 | scratch.mass_low[bin];
}

// What a histogram holds in the bins before this thread's own, and in all.
struct BinSums {
  unsigned count_before;
  Mass mass_before;
  Mass total;
};

template <bool kByMass>
__device__ inline BinSums scan_bins(CutScratch& scratch) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  unsigned own_count = 0;
  Mass own_mass = 0;
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    const int bin = static_cast<int>(threadIdx.x) * kBinsPerThread + i;
    own_count += scratch.counts[bin];
    own_mass += bin_mass<kByMass>(scratch, bin);
  }
  unsigned count = own_count;
  Mass mass = own_mass;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const unsigned count_below = __shfl_up_sync(kFullWarp, count, distance);
    const Mass mass_below = __shfl_up_sync(kFullWarp, mass, distance);
    if (lane >= distance) {
      count += count_below;
      mass += mass_below;
    }
  }
  if (lane == 31) {
    scratch.warp_counts[warp] = count;
    scratch.warp_masses[warp] = mass;
  }
  __syncthreads();
  BinSums sums{count - own_count, mass - own_mass, 0};
  for (int other = 0; other < kCutWarps; ++other) {
    if (other < warp) {
      sums.count_before += scratch.warp_counts[other];
      sums.mass_before += scratch.warp_masses[other];
    }
    sums.total += scratch.warp_masses[other];
  }
  return sums;
}

// The bin in which the cumulative mass reaches `wanted`, which is in [1, total].
template <bool kByMass>
__device__ inline Bin find_bin(CutScratch& scratch, const BinSums& sums, Mass wanted) {
  Bin bin{static_cast<int>(threadIdx.x) * kBinsPerThread, 0, sums.count_before, sums.mass_before};
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    const Mass mass = bin_mass<kByMass>(scratch, bin.index);
    bin.count = scratch.counts[bin.index];
    if (bin.mass_before < wanted && wanted <= bin.mass_before + mass) scratch.bin = bin;
    bin.mass_before += mass;
    bin.count_before += bin.count;
    ++bin.index;
  }
  __syncthreads();
  return scratch.bin;
}

// Lists the tokens of a range, of which there are at most kListCapacity.
__device__ inline void list_tokens(RowUnderCut& cut, const RankRange& range) {
  if (threadIdx.x == 0) cut.scratch.list_size = 0;
  __syncthreads();
  for_each_rank(cut, [&](Rank rank) {
    if (range.has(rank)) cut.scratch.list[atomicAdd(&cut.scratch.list_size, 1u)] = rank;
  });
  __syncthreads();
  cut.listed = range;
}

// The k-th largest of the largest z of the row's blocks: the k-th largest z of all is no smaller.
// There are at least k blocks.
__device__ inline float top_k_bound(CutScratch& scratch, const float* block_max, int num_blocks,
                                    int k) {
  for (int i = static_cast<int>(threadIdx.x); i < num_blocks; i += kCutThreads) {
    scratch.block_max[i] = block_max[i];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < num_blocks; i += kCutThreads) {
    const float own = scratch.block_max[i];
    int num_before = 0;
    for (int j = 0; j < num_blocks; ++j) {
      const float other = scratch.block_max[j];
      num_before += other > own || (other == own && j < i) ? 1 : 0;
    }
    if (num_before == k - 1) scratch.bound = own;
  }
  __syncthreads();
  return scratch.bound;
}

// Lists the tokens that a top-k can keep, reading no block that has none: those of z from the bound
// on. False, and no list, if there are more than it holds.
__device__ inline bool list_top_tokens(RowUnderCut& cut, const float* block_max, int k) {
  const SoftmaxRows& rows = cut.rows;
  CutScratch& scratch = cut.scratch;
  const auto num_blocks = static_cast<int>(rows.num_blocks);
  const float bound = top_k_bound(scratch, block_max, num_blocks, k);
  if (bound == -infinity()) return false;
  if (threadIdx.x == 0) scratch.list_size = 0;
  __syncthreads();
  for (int block = static_cast<int>(threadIdx.x) / 32; block < num_blocks; block += kCutWarps) {
    if (scratch.block_max[block] < bound) continue;
    const int64_t begin = block * kSoftmaxBlock;
    BlockValues z;
    load_block(z, rows, cut.t, begin);
    scale_block(z, rows.inv_temperature);
#pragma unroll
    for (int group = 0; group < kBlockGroups; ++group) {
#pragma unroll
      for (int i = 0; i < kLanesPerThread; ++i) {
        if (!(z[group][i] >= bound)) continue;
        const unsigned place = atomicAdd(&scratch.list_size, 1u);
        if (place < kListCapacity) {
          scratch.list[place] = rank_of(z[group][i], begin + block_token(group, i));
        }
      }
    }
  }
  __syncthreads();
  if (scratch.list_size > kListCapacity) return false;
  cut.listed = {0, rank_of(bound, kTokenMask)};
  return true;
}

// Narrows a range that starts at 0 to where the cumulative mass reaches wanted(total), digit by
// digit.
template <bool kByMass, typename Wanted>
__device__ inline RankRange select_rank(RowUnderCut& cut, RankRange range, int num_digits,
                                        const Wanted& wanted_of) {
  Mass wanted = 0;
  unsigned count_before = 0;
  for (int digit = 0; digit < num_digits; ++digit) {
    const int shift = digit_shift(digit);
    fill_bins<kByMass>(cut, range, shift);
    const BinSums sums = scan_bins<kByMass>(cut.scratch);
    if (digit == 0) wanted = wanted_of(sums.total);
    const Bin bin = find_bin<kByMass>(cut.scratch, sums, wanted);
    wanted -= bin.mass_before;
    count_before += bin.count_before;
    const Rank last = range.last;
    const Rank width = (Rank{1} << shift) - 1;
    range.first += static_cast<Rank>(bin.index) << shift;
    range.last = range.first + width < last ? range.first + width : last;
    if (digit + 1 < num_digits && !cut.listed.covers(range)) {
      if (count_before + bin.count <= kListCapacity) {
        list_tokens(cut, {0, range.last});
      } else if (bin.count <= kListCapacity) {
        list_tokens(cut, range);
      }
    }
  }
  return range;
}

__global__ void __launch_bounds__(kCutThreads)
    row_cuts_kernel(RowCut* cuts, SoftmaxRows rows, RowStatistics statistics, int32_t top_k,
                    double top_p) {
  __shared__ CutScratch scratch;
  const RowSums sums = statistics.rows[blockIdx.x];
  RowUnderCut cut{rows, blockIdx.x, sums.max, scratch, {1, 0}};
  RowCut result{-infinity(), -infinity(), 0x7fffffff};
  const auto cut_after = [](Rank rank) {
    const float z = scaled_of(rank);
    return RowCut{next_above(z), z, static_cast<int32_t>(rank & kTokenMask)};
  };
  const bool has_cut = is_sound(sums);
  RankRange kept{0, kLastRank};
  if (has_cut && top_k != 0) {
    if (top_k <= rows.num_blocks && rows.num_blocks <= kMaxBoundBlocks &&
        list_top_tokens(cut, statistics.blocks.max + cut.t * rows.num_blocks, top_k)) {
      kept.last = cut.listed.last;
    }
    const Mass wanted = static_cast<Mass>(top_k);
    kept.last = select_rank<false>(cut, kept, kNumDigits, [&](Mass) { return wanted; }).first;
    result = cut_after(kept.last);
  }
  if (has_cut && top_p < 1.0) {
    const Rank rank = select_rank<true>(cut, kept, kNumDigits, [&](Mass total) {
                        const double share = __dmul_rn(top_p, __ull2double_rn(total));
                        const Mass wanted = __double2ull_ru(share);
                        return wanted < total ? wanted : total;
                      }).first;
    result = cut_after(rank);
  }
  if (threadIdx.x == 0) cuts[cut.t] = result;
}

}  // namespace

RowCut* row_cuts(const char* op, const SoftmaxRows& rows, const RowStatistics& statistics,
                 const SamplingFilter& filter, OpContext& ctx) {
  const int32_t top_k = filter.top_k < rows.vocabulary ? filter.top_k : 0;
  if (top_k == 0 && filter.top_p >= 1.0) return nullptr;
  auto* cuts = workspace_array<RowCut>(ctx, rows.num_rows);
  launch(op, row_cuts_kernel, rows.num_rows, kCutThreads, ctx, cuts, rows, statistics, top_k,
         filter.top_p);
  return cuts;
}

}  // namespace grpo::ops::cuda
