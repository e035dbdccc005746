#include "model/tokenizer/bpe_merges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <random>

namespace grpo::model {
namespace {

using Ids = std::vector<int32_t>;
using Pair = std::pair<int32_t, int32_t>;

// The definition: while some neighbours are in the table, merge the pair of lowest rank, leftmost
// first.
Ids merge_by_definition(const std::map<Pair, BpeMerge>& merges, Ids ids) {
  while (true) {
    size_t best = ids.size();
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = merges.find({ids[i], ids[i + 1]});
      if (found == merges.end()) continue;
      if (best == ids.size() || found->second.rank < merges.at({ids[best], ids[best + 1]}).rank)
        best = i;
    }
    if (best == ids.size()) return ids;
    ids[best] = merges.at({ids[best], ids[best + 1]}).merged_id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

Ids merged(const BpeMergeTable& table, const Ids& ids) {
  Ids tokens;
  BpeMerger(table).merge(ids, tokens);
  return tokens;
}

TEST(BpeMerges, LowestRankFirstThenLeftmost) {
  BpeMergeTable table(3);
  table.insert(1, 1, {0, 10});
  table.insert(1, 2, {1, 11});
  table.insert(10, 2, {2, 12});
  EXPECT_EQ(merged(table, {1, 1, 1, 2}), (Ids{10, 11}));
  EXPECT_EQ(merged(table, {1, 1, 2}), (Ids{12}));
  EXPECT_EQ(merged(table, {1, 1, 1}), (Ids{10, 1}));
  EXPECT_EQ(merged(table, {2}), (Ids{2}));
  EXPECT_TRUE(merged(table, {}).empty());
}

TEST(BpeMerges, APairListedAgainTakesTheLaterRank) {
  BpeMergeTable table(3);
  table.insert(1, 2, {0, 10});
  table.insert(2, 3, {1, 11});
  table.insert(1, 2, {2, 10});
  EXPECT_EQ(merged(table, {1, 2, 3}), (Ids{1, 11}));
}

TEST(BpeMerges, EqualsTheDefinitionOnRandomTables) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const int32_t num_symbols = 2 + static_cast<int32_t>(random() % 3);
    std::vector<Pair> pairs;
    // New pairs of all tokens so far, in random rank order: also merges whose parts come later.
    const int32_t num_merges = 1 + static_cast<int32_t>(random() % 20);
    for (int32_t i = 0; i < num_merges; ++i) {
      const auto any = [&] {
        return static_cast<int32_t>(random() % static_cast<uint32_t>(num_symbols + i));
      };
      pairs.emplace_back(any(), any());
    }
    std::vector<uint32_t> ranks;
    for (uint32_t i = 0; i < pairs.size(); ++i) ranks.push_back(i);
    if (round % 2 == 1) std::shuffle(ranks.begin(), ranks.end(), random);
    BpeMergeTable table(pairs.size());
    std::map<Pair, BpeMerge> merges;
    for (size_t i = 0; i < pairs.size(); ++i) {
      const BpeMerge merge{ranks[i], num_symbols + static_cast<int32_t>(i)};
      table.insert(pairs[i].first, pairs[i].second, merge);
      merges[pairs[i]] = merge;
    }
    Ids ids;
    for (size_t i = random() % 40; i > 0; --i)
      ids.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(num_symbols)));
    ASSERT_EQ(merged(table, ids), merge_by_definition(merges, ids)) << "round " << round;
  }
}

TEST(BpeMerges, LongWordsStayFast) {
  BpeMergeTable table(16);
  for (int32_t i = 0; i < 16; ++i) table.insert(i, i, {static_cast<uint32_t>(i), i + 1});
  const std::clock_t start = std::clock();
  const Ids tokens = merged(table, Ids((size_t{1} << 20) + 5, 0));
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC,
            20.0);  // quadratic: minutes
  Ids expected(16, 16);
  expected.push_back(2);
  expected.push_back(0);
  EXPECT_EQ(tokens, expected);
}

}  // namespace
}  // namespace grpo::model
