#include "generation/cached_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/core/host_transfer.h"
#include "tests/model_fixture.h"

namespace grpo::generation {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kVersion = 3;

class CachedRowsTest : public ::testing::Test {
 protected:
  SequencePages sequence_of(int64_t num_tokens) {
    SequencePages pages = cache_.begin_sequence(kVersion);
    cache_.extend(pages, num_tokens);
    return pages;
  }

  std::vector<int32_t> values(const Tensor& tensor) { return to_host<int32_t>(tensor); }

  grpo::testing::RankContext rank_;
  KvCache cache_{{.num_layers = 2,
                  .num_kv_heads = 1,
                  .head_dim = 8,
                  .dtype = DType::kFloat32,
                  .page_size_tokens = 4,
                  .num_pages = 10},
                 rank_.allocator};
  const Workspace::Scope scope_{rank_.workspace};
};

TEST_F(CachedRowsTest, RowsFollowWhatThePagesHold) {
  SequencePages first = sequence_of(3);   // page 0
  SequencePages second = sequence_of(0);  // pages 1 and 2, once its tokens are placed
  const std::vector<int32_t> tokens{50, 51, 52, 53, 54, 55};
  const std::span<const int32_t> all(tokens);
  const model::CachedRows rows =
      place_rows(cache_,
                 {{.pages = &first, .tokens = all.first(1), .wants_logits = false},
                  {.pages = &second, .tokens = all.subspan(1), .wants_logits = true}},
                 kVersion, {}, rank_.ctx);
  EXPECT_EQ(first.num_tokens, 4);
  EXPECT_EQ(second.num_tokens, 5);
  EXPECT_EQ(values(rows.tokens), tokens);
  EXPECT_THAT(values(rows.positions), ElementsAre(3, 3, 0, 4, 1, 5, 2, 6, 3, 7, 4, 8));
  EXPECT_THAT(values(rows.kv.query_offsets), ElementsAre(0, 1, 6));
  EXPECT_THAT(values(rows.kv.context_lengths), ElementsAre(4, 5));
  EXPECT_EQ(rows.kv.page_first_slot.shape(), (Shape{2, 2}));
  EXPECT_THAT(values(rows.kv.page_first_slot), ElementsAre(0, 0, 4, 8));
  EXPECT_THAT(values(rows.logit_rows), ElementsAre(5));
  EXPECT_EQ(rows.kv.max_query_rows, 5);
  EXPECT_EQ(rows.kv.max_context_tokens, 5);
  EXPECT_EQ(rows.keys.size(), 2u);
}

TEST_F(CachedRowsTest, PaddingRepeatsTheFirstSequence) {
  SequencePages first = sequence_of(4);   // pages 0 and, for its token, 2
  SequencePages second = sequence_of(1);  // page 1
  const std::vector<int32_t> tokens{50, 51};
  const std::span<const int32_t> all(tokens);
  const model::CachedRows rows =
      place_rows(cache_,
                 {{.pages = &first, .tokens = all.first(1), .wants_logits = true},
                  {.pages = &second, .tokens = all.last(1), .wants_logits = true}},
                 kVersion, {.num_sequences = 4, .num_pages = 3}, rank_.ctx);
  EXPECT_EQ(first.num_tokens, 5);
  EXPECT_THAT(values(rows.tokens), ElementsAre(50, 51, 50, 50));
  EXPECT_THAT(values(rows.positions), ElementsAre(4, 8, 1, 5, 4, 8, 4, 8));
  EXPECT_THAT(values(rows.kv.query_offsets), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(values(rows.kv.context_lengths), ElementsAre(5, 2, 5, 5));
  EXPECT_EQ(rows.kv.page_first_slot.shape(), (Shape{4, 3}));
  EXPECT_THAT(values(rows.kv.page_first_slot), ElementsAre(0, 8, 0, 4, 0, 0, 0, 8, 0, 0, 8, 0));
  EXPECT_THAT(values(rows.logit_rows), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(rows.kv.max_context_tokens, 12);
}

// R08.
TEST_F(CachedRowsTest, PagesOfOtherWeightsAreAnError) {
  SequencePages pages = sequence_of(1);
  const std::vector<int32_t> tokens{50};
  EXPECT_THROW(place_rows(cache_, {{.pages = &pages, .tokens = tokens, .wants_logits = true}},
                          kVersion + 1, {}, rank_.ctx),
               InternalError);
}

}  // namespace
}  // namespace grpo::generation
