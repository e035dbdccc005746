#include "generation/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace grpo::generation {
namespace {

constexpr int64_t kLayers = 2;
constexpr int64_t kHeads = 2;
constexpr int64_t kHeadDim = 8;
constexpr int64_t kPageSize = 4;
constexpr int64_t kPages = 6;

class KvCacheTest : public ::testing::Test {
 protected:
  // Writes a value that names (layer, slot, key or value) into a token's slots.
  void write(const SequencePages& sequence, int64_t position, float value) {
    const int64_t row = kHeads * kHeadDim;
    const int64_t slot = cache_.slot(sequence, position);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (int64_t i = 0; i < row; ++i) {
        const float place = 100.0f * static_cast<float>(layer) + static_cast<float>(i);
        keys(layer)[slot * row + i] = value + place;
        values(layer)[slot * row + i] = -value - place;
      }
    }
  }

  void expect_holds(const SequencePages& sequence, int64_t position, float value) {
    const int64_t row = kHeads * kHeadDim;
    const int64_t slot = cache_.slot(sequence, position);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (int64_t i = 0; i < row; ++i) {
        const float place = 100.0f * static_cast<float>(layer) + static_cast<float>(i);
        ASSERT_EQ(keys(layer)[slot * row + i], value + place) << "position " << position;
        ASSERT_EQ(values(layer)[slot * row + i], -value - place) << "position " << position;
      }
    }
  }

  SequencePages fork_of(const SequencePages& sequence) {
    const SequencePages* const source = &sequence;
    return cache_.fork({&source, 1}, ctx_)[0];
  }

  float* keys(int64_t layer) { return cache_.keys()[static_cast<size_t>(layer)].data<float>(); }
  float* values(int64_t layer) { return cache_.values()[static_cast<size_t>(layer)].data<float>(); }

  Allocator allocator_{Device::cpu()};
  KvCache cache_{{.num_layers = kLayers,
                  .num_kv_heads = kHeads,
                  .head_dim = kHeadDim,
                  .dtype = DType::kFloat32,
                  .page_size_tokens = kPageSize,
                  .num_pages = kPages},
                 allocator_};
  Workspace workspace_{allocator_};
  OpContext ctx_{allocator_.device(), Stream::none(), workspace_};
};

TEST_F(KvCacheTest, PagesAreTakenAsTokensNeedThem) {
  SequencePages sequence = cache_.begin_sequence(5);
  EXPECT_EQ(sequence.weights_version, 5u);
  EXPECT_EQ(cache_.num_free_pages(), kPages);
  const std::vector<std::pair<int64_t, int64_t>> steps{{0, 0}, {1, 1}, {3, 1}, {1, 2}, {8, 4}};
  for (const auto& [tokens, pages] : steps) {
    cache_.extend(sequence, tokens);
    EXPECT_EQ(static_cast<int64_t>(sequence.pages.size()), pages);
    EXPECT_EQ(cache_.num_free_pages(), kPages - pages);
  }
  EXPECT_EQ(sequence.num_tokens, 13);
  cache_.release(sequence);
  EXPECT_EQ(cache_.num_free_pages(), kPages);
  EXPECT_TRUE(sequence.pages.empty());
  EXPECT_EQ(sequence.num_tokens, 0);
}

TEST_F(KvCacheTest, EveryTokenHasASlotOfItsOwn) {
  SequencePages a = cache_.begin_sequence(1);
  SequencePages b = cache_.begin_sequence(1);
  for (int64_t i = 0; i < 12; ++i) {  // interleaved, so that pages alternate
    cache_.extend(a, 1);
    cache_.extend(b, 1);
  }
  std::vector<int32_t> slots;
  for (const SequencePages* sequence : {&a, &b}) {
    for (int64_t position = 0; position < 12; ++position) {
      slots.push_back(cache_.slot(*sequence, position));
      EXPECT_EQ(slots.back() % kPageSize, position % kPageSize);
    }
  }
  std::sort(slots.begin(), slots.end());
  EXPECT_EQ(std::adjacent_find(slots.begin(), slots.end()), slots.end());
  EXPECT_GE(slots.front(), 0);
  EXPECT_LT(slots.back(), kPages * kPageSize);
}

TEST_F(KvCacheTest, ASlotOutsideTheSequenceIsAnError) {
  SequencePages sequence = cache_.begin_sequence(1);
  EXPECT_THROW(cache_.slot(sequence, 0), InternalError);
  cache_.extend(sequence, 2);
  EXPECT_NO_THROW(cache_.slot(sequence, 1));
  EXPECT_THROW(cache_.slot(sequence, 2), InternalError);  // room on the page, but no token
  EXPECT_THROW(cache_.slot(sequence, -1), InternalError);
}

TEST_F(KvCacheTest, ForkSharesFullPagesAndCopiesAPartialOne) {
  SequencePages prompt = cache_.begin_sequence(3);
  cache_.extend(prompt, 10);
  for (int64_t i = 0; i < 10; ++i) write(prompt, i, 1000.0f * static_cast<float>(i));
  SequencePages fork = fork_of(prompt);
  EXPECT_EQ(fork.num_tokens, 10);
  EXPECT_EQ(fork.weights_version, 3u);
  ASSERT_EQ(fork.pages.size(), 3u);
  EXPECT_EQ(fork.pages[0], prompt.pages[0]);
  EXPECT_EQ(fork.pages[1], prompt.pages[1]);
  EXPECT_NE(fork.pages[2], prompt.pages[2]);
  EXPECT_EQ(cache_.num_free_pages(), kPages - 4);
  for (int64_t i = 0; i < 10; ++i) expect_holds(fork, i, 1000.0f * static_cast<float>(i));
  // Each goes its own way.
  cache_.extend(fork, 1);
  cache_.extend(prompt, 1);
  write(fork, 10, 77.0f);
  write(prompt, 10, 88.0f);
  expect_holds(fork, 10, 77.0f);
  expect_holds(prompt, 10, 88.0f);
}

TEST_F(KvCacheTest, ForkOfFullPagesTakesNone) {
  SequencePages prompt = cache_.begin_sequence(1);
  cache_.extend(prompt, 2 * kPageSize);
  SequencePages fork = fork_of(prompt);
  EXPECT_EQ(fork.pages, prompt.pages);
  EXPECT_EQ(cache_.num_free_pages(), kPages - 2);
  cache_.extend(fork, 1);
  cache_.extend(prompt, 1);
  EXPECT_NE(fork.pages[2], prompt.pages[2]);
}

TEST_F(KvCacheTest, ForksOfSeveralSequencesAtOnce) {
  SequencePages first = cache_.begin_sequence(1);
  SequencePages second = cache_.begin_sequence(1);
  cache_.extend(first, 2);
  cache_.extend(second, kPageSize);
  for (int64_t i = 0; i < 2; ++i) write(first, i, 10.0f + static_cast<float>(i));
  const std::vector<const SequencePages*> sources{&first, &first, &second};
  std::vector<SequencePages> forks = cache_.fork(sources, ctx_);
  ASSERT_EQ(forks.size(), 3u);
  EXPECT_EQ(cache_.num_free_pages(), kPages - 4);
  for (size_t i = 0; i < 2; ++i) {
    cache_.extend(forks[i], 1);
    write(forks[i], 2, 30.0f + static_cast<float>(i));
  }
  for (size_t i = 0; i < 2; ++i) {
    expect_holds(forks[i], 0, 10.0f);
    expect_holds(forks[i], 1, 11.0f);
    expect_holds(forks[i], 2, 30.0f + static_cast<float>(i));
  }
  EXPECT_EQ(forks[2].pages, second.pages);
  // Three more copies do not fit, and none is made.
  const std::vector<const SequencePages*> too_many{&first, &first, &first};
  EXPECT_THROW(cache_.fork(too_many, ctx_), InternalError);
  EXPECT_EQ(cache_.num_free_pages(), kPages - 4);
  EXPECT_TRUE(cache_.fork({}, ctx_).empty());
}

TEST_F(KvCacheTest, SharedPagesAreFreeWhenTheLastHolderIsGone) {
  SequencePages prompt = cache_.begin_sequence(1);
  cache_.extend(prompt, 5);
  SequencePages first = fork_of(prompt);
  SequencePages second = fork_of(first);
  EXPECT_EQ(cache_.num_free_pages(), kPages - 4);  // one shared, three partial
  cache_.release(prompt);
  EXPECT_EQ(cache_.num_free_pages(), kPages - 3);
  cache_.release(second);
  EXPECT_EQ(cache_.num_free_pages(), kPages - 2);
  cache_.release(first);
  EXPECT_EQ(cache_.num_free_pages(), kPages);
  cache_.release(first);  // holds nothing any more
  EXPECT_EQ(cache_.num_free_pages(), kPages);
}

TEST_F(KvCacheTest, WritingASharedPageIsAnError) {
  SequencePages prompt = cache_.begin_sequence(1);
  cache_.extend(prompt, kPageSize);
  SequencePages fork = fork_of(prompt);
  --fork.num_tokens;  // the next token would overwrite the prompt's last
  EXPECT_THROW(cache_.extend(fork, 1), InternalError);
  cache_.release(prompt);
  EXPECT_NO_THROW(cache_.extend(fork, 1));
}

TEST_F(KvCacheTest, AFullCacheIsAnErrorThatChangesNothing) {
  SequencePages sequence = cache_.begin_sequence(1);
  EXPECT_THROW(cache_.extend(sequence, kPages * kPageSize + 1), InternalError);
  EXPECT_EQ(sequence.num_tokens, 0);
  EXPECT_EQ(cache_.num_free_pages(), kPages);
  cache_.extend(sequence, kPages * kPageSize - 1);
  EXPECT_EQ(cache_.num_free_pages(), 0);
  EXPECT_THROW(fork_of(sequence), InternalError);
  SequencePages other = cache_.begin_sequence(1);
  EXPECT_THROW(cache_.extend(other, 1), InternalError);
  cache_.extend(sequence, 1);  // the last page still has room
  cache_.release(sequence);
  EXPECT_EQ(cache_.num_free_pages(), kPages);
  EXPECT_NO_THROW(cache_.extend(other, kPages * kPageSize));
}

TEST_F(KvCacheTest, ReleaseAllForgetsEverySequence) {
  SequencePages lost = cache_.begin_sequence(1);
  cache_.extend(lost, 6);
  SequencePages fork = fork_of(lost);
  cache_.release_all();
  EXPECT_EQ(cache_.num_free_pages(), kPages);
  SequencePages sequence = cache_.begin_sequence(1);
  cache_.extend(sequence, kPages * kPageSize);
  std::vector<int32_t> pages = sequence.pages;
  std::sort(pages.begin(), pages.end());
  EXPECT_EQ(std::adjacent_find(pages.begin(), pages.end()), pages.end());
  cache_.release(sequence);
  EXPECT_EQ(cache_.num_free_pages(), kPages);
}

// R08.
TEST_F(KvCacheTest, StaleKeysAreAnError) {
  const SequencePages sequence = cache_.begin_sequence(4);
  EXPECT_NO_THROW(KvCache::check_version(sequence, 4));
  for (const uint64_t version : {3, 5}) {
    try {
      KvCache::check_version(sequence, version);
      FAIL() << "version " << version << " accepted";
    } catch (const InternalError& error) {
      EXPECT_NE(std::string(error.what()).find("stale KV"), std::string::npos) << error.what();
    }
  }
  // A fork is as old as its source.
  SequencePages copy = fork_of(sequence);
  EXPECT_THROW(KvCache::check_version(copy, 5), InternalError);
}

}  // namespace
}  // namespace grpo::generation
