// T rows, S sequences, H query heads, G key/value heads, K head dim.
#include "model/ops/attention.h"

#include "tests/ops/attention_sequences.h"

namespace grpo::ops {
namespace {

constexpr float kScale = 0.3f;

struct AttentionCase {
  std::vector<int32_t> lengths;
  AttentionSizes sizes;
};

using Case = std::tuple<DType, AttentionCase>;

class AttentionTest : public ::testing::TestWithParam<Case>, public OpTestTensors {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  const AttentionCase& shape() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionTest,
    ::testing::Combine(::testing::ValuesIn(kActivationDTypes),
                       ::testing::Values(AttentionCase{{1}, {1, 1, 8}},
                                         AttentionCase{{5, 0, 2}, {2, 1, 8}},
                                         AttentionCase{{33, 7, 64}, {4, 4, 16}},
                                         AttentionCase{{71, 32}, {6, 2, 24}},
                                         AttentionCase{{97}, {14, 2, 64}},
                                         AttentionCase{{40}, {67, 1, 8}})),
    [](const auto& test) {
      const AttentionCase& c = std::get<1>(test.param);
      return case_name(std::get<0>(test.param),
                       {c.lengths[0], c.sizes.heads, c.sizes.kv_heads, c.sizes.head_dim});
    });

struct Result {
  Values out, lse;
};

// softmax(scale q k^T) v in float64 on packed rows.
Result reference(const PackedSequences& sequences, const Values& q, const Values& keys,
                 const Values& values) {
  const int64_t heads = sequences.q.size(1);
  const int64_t kv_heads = sequences.keys.size(1);
  const int64_t head_dim = sequences.q.size(2);
  const double scale = kScale;
  Result result{Values(q.size(), 0.0), {}};
  const auto vector_at = [&](const Values& all, int64_t row, int64_t num_heads, int64_t head) {
    return all.data() + (row * num_heads + head) * head_dim;
  };
  for (size_t s = 0; s < sequences.lengths.size(); ++s) {
    const int64_t first = sequences.first_row(s);
    for (int64_t i = 0; i < sequences.lengths[s]; ++i) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t g = h / (heads / kv_heads);
        const double* query = vector_at(q, first + i, heads, h);
        Values weights;
        double sum = 0.0;
        for (int64_t j = 0; j <= i; ++j) {
          double score = 0.0;
          const double* key = vector_at(keys, first + j, kv_heads, g);
          for (int64_t k = 0; k < head_dim; ++k) score += query[k] * key[k];
          weights.push_back(std::exp(scale * score));
          sum += weights.back();
        }
        double* out = result.out.data() + ((first + i) * heads + h) * head_dim;
        for (int64_t j = 0; j <= i; ++j) {
          const double* value = vector_at(values, first + j, kv_heads, g);
          const double weight = weights[static_cast<size_t>(j)] / sum;
          for (int64_t k = 0; k < head_dim; ++k) out[k] += weight * value[k];
        }
        result.lse.push_back(std::log(sum));
      }
    }
  }
  return result;
}

TEST_P(AttentionTest, ForwardIsTheFormula) {
  const PackedSequences sequences =
      random_sequences(*this, dtype(), shape().lengths, shape().sizes);
  const Tensor out = make(dtype(), sequences.q.shape());
  const Tensor lse = make(DType::kFloat32, {sequences.num_rows(), shape().sizes.heads});
  attention_forward(out, lse, sequences.q, packed_view(*this, sequences), kScale, ctx());
  const Result wanted = reference(sequences, values_of(sequences.q), values_of(sequences.keys),
                                  values_of(sequences.values));
  expect_close(out, wanted.out, kAttention, "out");
  expect_close(lse, wanted.lse, kAttention, "lse");
  const Tensor without_lse = make(dtype(), sequences.q.shape());
  attention_forward(without_lse, Tensor(), sequences.q, packed_view(*this, sequences), kScale,
                    ctx());
  expect_same_bits(without_lse, out, "out without lse");
}

// Rows of a full packed pass, in the same bits from passes of `step` rows a sequence over pages.
// Sequences start one pass after another, so that every pass mixes different positions.
TEST_P(AttentionTest, PagedPassesGiveTheSameBits) {
  const PackedSequences sequences =
      random_sequences(*this, dtype(), shape().lengths, shape().sizes);
  const Tensor out = make(dtype(), sequences.q.shape());
  const Tensor lse = make(DType::kFloat32, {sequences.num_rows(), shape().sizes.heads});
  attention_forward(out, lse, sequences.q, packed_view(*this, sequences), kScale, ctx());
  const size_t count = sequences.lengths.size();
  const int64_t longest = *std::max_element(shape().lengths.begin(), shape().lengths.end());
  for (const int64_t page_size : {1, 3, 16, 64}) {
    for (const int64_t step : {int64_t{1}, int64_t{7}, int64_t{32}, longest}) {
      PagedCache cache(*this, sequences, page_size);
      const int64_t num_passes = (longest + step - 1) / step + static_cast<int64_t>(count) - 1;
      for (int64_t pass = 0; pass < num_passes; ++pass) {
        std::vector<int64_t> begins;
        std::vector<int64_t> ends;
        for (size_t s = 0; s < count; ++s) {
          const auto clamped = [&](int64_t key) {
            return std::clamp<int64_t>(key, 0, sequences.lengths[s]);
          };
          const int64_t turn = pass - static_cast<int64_t>(s);
          begins.push_back(clamped(turn * step));
          ends.push_back(clamped((turn + 1) * step));
          cache.append(s, begins.back(), ends.back());
        }
        const KvView view = cache.view(begins, ends);
        const int64_t rows = view.query_offsets.data<int32_t>()[count];
        const Tensor q = make(dtype(), {rows, shape().sizes.heads, shape().sizes.head_dim});
        const Tensor paged = make(dtype(), q.shape());
        const Tensor paged_lse = make(DType::kFloat32, {rows, shape().sizes.heads});
        for (size_t s = 0; s < count; ++s) {
          const int64_t offset = view.query_offsets.data<int32_t>()[s];
          copy_tensor(q.rows(offset, ends[s] - begins[s]),
                      sequences.q.rows(sequences.first_row(s) + begins[s], ends[s] - begins[s]));
        }
        attention_forward(paged, paged_lse, q, view, kScale, ctx());
        for (size_t s = 0; s < count; ++s) {
          const int64_t offset = view.query_offsets.data<int32_t>()[s];
          const int64_t first = sequences.first_row(s) + begins[s];
          const int64_t added = ends[s] - begins[s];
          expect_same_bits(paged.rows(offset, added), out.rows(first, added), "out");
          expect_same_bits(paged_lse.rows(offset, added), lse.rows(first, added), "lse");
          ASSERT_FALSE(HasFailure()) << "page size " << page_size << ", step " << step << ", pass "
                                     << pass << ", sequence " << s;
        }
      }
    }
  }
}

// The negative control: close, the same bits as long as one tile holds all keys, others after.
TEST_P(AttentionTest, NarrowTilesGiveOtherBits) {
  const PackedSequences sequences =
      random_sequences(*this, dtype(), shape().lengths, shape().sizes);
  const KvView view = packed_view(*this, sequences);
  const Tensor wide = make(dtype(), sequences.q.shape());
  const Tensor narrow = make(dtype(), sequences.q.shape());
  const Shape lse_shape{sequences.num_rows(), shape().sizes.heads};
  const Tensor wide_lse = make(DType::kFloat32, lse_shape);
  const Tensor narrow_lse = make(DType::kFloat32, lse_shape);
  attention_forward(wide, wide_lse, sequences.q, view, kScale, ctx());
  ctx().numerics.narrow_kv_tiles = true;
  attention_forward(narrow, narrow_lse, sequences.q, view, kScale, ctx());
  expect_close(narrow, values_of(wide), kAttention, "out");
  const int64_t same = std::min<int64_t>(shape().lengths[0], kNarrowTileKeys);
  expect_same_bits(narrow.rows(0, same), wide.rows(0, same), "rows of one tile");
  EXPECT_EQ(0 == std::memcmp(narrow_lse.raw(), wide_lse.raw(), wide_lse.size_bytes()),
            shape().lengths[0] <= 5);  // few of few rows differ
}

TEST_P(AttentionTest, BackwardIsTheDerivative) {
  const PackedSequences sequences =
      random_sequences(*this, dtype(), shape().lengths, shape().sizes);
  const KvView view = packed_view(*this, sequences);
  const Tensor out = make(dtype(), sequences.q.shape());
  const Tensor lse = make(DType::kFloat32, {sequences.num_rows(), shape().sizes.heads});
  attention_forward(out, lse, sequences.q, view, kScale, ctx());
  const Tensor dout = random(dtype(), sequences.q.shape());
  const AttentionGradients gradients{make(dtype(), sequences.q.shape()),
                                     make(dtype(), sequences.keys.shape()),
                                     make(dtype(), sequences.keys.shape())};
  attention_backward(gradients, dout, {sequences.q, out, lse}, view, kScale, ctx());
  const Values q = values_of(sequences.q);
  const Values keys = values_of(sequences.keys);
  const Values values = values_of(sequences.values);
  const Values weights = values_of(dout);
  const auto loss = [&](const Values& q_at, const Values& keys_at, const Values& values_at) {
    return dot(reference(sequences, q_at, keys_at, values_at).out, weights);
  };
  expect_gradient(
      gradients.dq, [&](const Values& x) { return loss(x, keys, values); }, q, kAttentionGradient,
      "dq");
  expect_gradient(
      gradients.dkeys, [&](const Values& x) { return loss(q, x, values); }, keys,
      kAttentionGradient, "dkeys");
  expect_gradient(
      gradients.dvalues, [&](const Values& x) { return loss(q, keys, x); }, values,
      kAttentionGradient, "dvalues");

  const AttentionGradients again{make(dtype(), sequences.q.shape()),
                                 make(dtype(), sequences.keys.shape()),
                                 make(dtype(), sequences.keys.shape())};
  attention_backward(again, dout, {sequences.q, out, lse}, view, kScale, ctx());
  expect_same_bits(again.dq, gradients.dq, "dq again");
  expect_same_bits(again.dkeys, gradients.dkeys, "dkeys again");
  expect_same_bits(again.dvalues, gradients.dvalues, "dvalues again");
}

class AttentionEdgeTest : public OpTest {};

TEST_F(AttentionEdgeTest, ZeroRows) {
  const Tensor q = make(DType::kFloat32, {0, 4, 8});
  const Tensor keys = make(DType::kFloat32, {0, 2, 8});
  const Tensor lse = make(DType::kFloat32, {0, 4});
  const KvView none{keys, keys, ints({1}, {0}), ints({0}, {}), ints({0, 1}, {}), 16, 0, 0};
  attention_forward(q, lse, q, none, kScale, ctx());
  attention_backward({q, keys, keys}, q, {q, q, lse}, none, kScale, ctx());
}

TEST_F(AttentionEdgeTest, RowsIgnoreTheKeysBehindThem) {
  const PackedSequences sequences =
      random_sequences(*this, DType::kFloat32, {45}, AttentionSizes{4, 2, 8});
  const KvView view = packed_view(*this, sequences);
  const Tensor clean = make(DType::kFloat32, sequences.q.shape());
  attention_forward(clean, Tensor(), sequences.q, view, kScale, ctx());
  for (const Tensor& behind : {sequences.keys.rows(40, 5), sequences.values.rows(40, 5)}) {
    poison_memory(behind.raw(), behind.size_bytes(), Device::cpu());
  }
  const Tensor dirty = make(DType::kFloat32, sequences.q.shape());
  attention_forward(dirty, Tensor(), sequences.q, view, kScale, ctx());
  expect_same_bits(dirty.rows(0, 40), clean.rows(0, 40), "rows before the poison");
  for (const double value : values_of(dirty.rows(40, 5))) ASSERT_TRUE(std::isnan(value));
}

TEST_F(AttentionEdgeTest, LargeScoresStayFinite) {
  const PackedSequences sequences =
      random_sequences(*this, DType::kFloat32, {70}, AttentionSizes{2, 1, 8});
  const Tensor out = make(DType::kFloat32, sequences.q.shape());
  const Tensor lse = make(DType::kFloat32, {70, 2});
  attention_forward(out, lse, sequences.q, packed_view(*this, sequences), 1e4f, ctx());
  for (const double value : values_of(out)) ASSERT_TRUE(std::isfinite(value));
  for (const double value : values_of(lse)) ASSERT_TRUE(std::isfinite(value));
}

TEST_F(AttentionEdgeTest, OperandsAndSequencesAreChecked) {
  const PackedSequences sequences =
      random_sequences(*this, DType::kFloat32, {3, 2}, AttentionSizes{4, 2, 8});
  const Tensor& q = sequences.q;
  const KvView good = packed_view(*this, sequences);
  const Tensor out = make(DType::kFloat32, q.shape());
  const auto refused = [&](const KvView& view) {
    EXPECT_THROW(attention_forward(out, Tensor(), q, view, kScale, ctx()), InternalError);
  };
  KvView bad = good;
  bad.query_offsets = ints({3}, {0, 3, 6});
  refused(bad);
  bad = good;
  bad.context_lengths = ints({2}, {3, 1});
  refused(bad);
  bad = good;
  bad.page_first_slot = ints({2, 1}, {0, 4});
  refused(bad);
  bad = good;
  bad.page_first_slot = ints({2, 1}, {-1, 3});
  refused(bad);
  bad = good;
  bad.page_size_tokens = 2;
  refused(bad);
  bad = good;
  bad.page_size_tokens = 0;
  refused(bad);
  bad = good;
  bad.max_query_rows = 2;
  refused(bad);
  bad = good;
  bad.max_context_tokens = 2;
  refused(bad);
  bad = good;
  bad.values = make(DType::kBfloat16, good.keys.shape());
  refused(bad);
  EXPECT_THROW(
      attention_forward(make(DType::kFloat32, {5, 4, 16}), Tensor(), q, good, kScale, ctx()),
      InternalError);
  EXPECT_THROW(attention_forward(out, make(DType::kFloat32, {5, 3}), q, good, kScale, ctx()),
               InternalError);
}

TEST_F(AttentionEdgeTest, BackwardRefusesPagedKeys) {
  const PackedSequences sequences =
      random_sequences(*this, DType::kFloat32, {4}, AttentionSizes{2, 2, 8});
  KvView view = packed_view(*this, sequences);
  view.page_first_slot = ints({1, 2}, {0, 2});
  view.page_size_tokens = 2;
  const Tensor& q = sequences.q;
  const Tensor lse = random(DType::kFloat32, {4, 2});
  EXPECT_THROW(
      attention_backward({make(DType::kFloat32, q.shape()), make(DType::kFloat32, q.shape()),
                          make(DType::kFloat32, q.shape())},
                         q, {q, q, lse}, view, kScale, ctx()),
      InternalError);
}

}  // namespace
}  // namespace grpo::ops
