#include "rl/data/work_division.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>

#include "model/core/errors.h"

namespace grpo::rl {

DataRanks data_ranks(const parallel::ProcessGroups& groups) {
  return {.gtp_remat = groups.gtp_remat.size(), .dp = groups.dp.size()};
}

int64_t least_micro_batches(const DataRanks& ranks, const MicroBatchRule& rule) {
  CHECK(ranks.gtp_remat >= 1 && ranks.dp >= 1 && rule.multiple >= 1);
  return ranks.dp * ((ranks.gtp_remat + rule.multiple - 1) / rule.multiple * rule.multiple);
}

std::vector<std::vector<MicroBatch>> deal_micro_batches(std::span<const int64_t> lengths,
                                                        const DataRanks& ranks,
                                                        const MicroBatchRule& rule) {
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  const auto step = static_cast<size_t>(least_micro_batches(ranks, rule));
  std::vector<MicroBatch> batches;
  using Load = std::pair<int64_t, size_t>;  // tokens, micro-batch
  std::priority_queue<Load, std::vector<Load>, std::greater<>> lightest;
  const auto open_more = [&] {
    for (size_t i = 0; i < step; ++i) {
      lightest.emplace(0, batches.size());
      batches.emplace_back();
    }
  };
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  do {
    open_more();
  } while (static_cast<int64_t>(batches.size()) * rule.max_tokens < total);
  for (const size_t index : order) {
    CHECK(lengths[index] >= 1 && lengths[index] <= rule.max_tokens, "sequence of {} tokens, {} fit",
          lengths[index], rule.max_tokens);
    if (lightest.top().first + lengths[index] > rule.max_tokens) open_more();
    const auto [tokens, batch] = lightest.top();
    lightest.pop();
    batches[batch].push_back(index);
    lightest.emplace(tokens + lengths[index], batch);
  }
  while (!batches.empty() && batches.back().empty()) batches.pop_back();
  const auto num_ranks = static_cast<size_t>(ranks.size());
  const size_t rounds = std::max<size_t>(1, (batches.size() + num_ranks - 1) / num_ranks);
  std::vector<std::vector<MicroBatch>> dealt(num_ranks, std::vector<MicroBatch>(rounds));
  const auto dp = static_cast<size_t>(ranks.dp);
  const auto gtp_remat = static_cast<size_t>(ranks.gtp_remat);
  for (size_t b = 0; b < batches.size(); ++b) {
    std::sort(batches[b].begin(), batches[b].end());
    const size_t of_replica = b / dp;
    const size_t rank = b % dp * gtp_remat + of_replica % gtp_remat;
    dealt[rank][of_replica / gtp_remat] = std::move(batches[b]);
  }
  return dealt;
}

std::pair<int64_t, int64_t> contiguous_share(int64_t total, int num_ranks, int rank) {
  return {total * rank / num_ranks, total * (rank + 1) / num_ranks};
}

}  // namespace grpo::rl
