#include "rl/work_division.h"

#include <algorithm>
#include <numeric>

#include "model/core/errors.h"

namespace grpo::rl {

namespace {

// First fit, in the order given; each micro-batch's indices ascend.
std::vector<MicroBatch> pack(const std::vector<size_t>& indices, std::span<const int64_t> lengths,
                             int64_t max_tokens) {
  std::vector<MicroBatch> batches;
  std::vector<int64_t> tokens;
  for (const size_t index : indices) {
    size_t batch = 0;
    while (batch < batches.size() && tokens[batch] + lengths[index] > max_tokens) ++batch;
    if (batch == batches.size()) {
      batches.emplace_back();
      tokens.push_back(0);
    }
    batches[batch].push_back(index);
    tokens[batch] += lengths[index];
  }
  for (MicroBatch& batch : batches) std::sort(batch.begin(), batch.end());
  return batches;
}

}  // namespace

std::vector<std::vector<MicroBatch>> deal_micro_batches(std::span<const int64_t> lengths,
                                                        int num_ranks, int64_t max_tokens) {
  CHECK(num_ranks >= 1);
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  std::vector<std::vector<size_t>> shares(static_cast<size_t>(num_ranks));
  std::vector<int64_t> tokens(static_cast<size_t>(num_ranks), 0);
  for (const size_t index : order) {
    CHECK(lengths[index] >= 1 && lengths[index] <= max_tokens, "sequence of {} tokens, {} fit",
          lengths[index], max_tokens);
    const auto rank =
        static_cast<size_t>(std::min_element(tokens.begin(), tokens.end()) - tokens.begin());
    shares[rank].push_back(index);
    tokens[rank] += lengths[index];
  }
  std::vector<std::vector<MicroBatch>> dealt;
  size_t most = 1;
  for (const std::vector<size_t>& share : shares) {
    dealt.push_back(pack(share, lengths, max_tokens));
    most = std::max(most, dealt.back().size());
  }
  for (std::vector<MicroBatch>& batches : dealt) batches.resize(most);
  return dealt;
}

std::pair<int64_t, int64_t> contiguous_share(int64_t total, int num_ranks, int rank) {
  return {total * rank / num_ranks, total * (rank + 1) / num_ranks};
}

}  // namespace grpo::rl
