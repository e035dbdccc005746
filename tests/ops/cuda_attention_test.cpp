// T rows, S sequences, H query heads, G key/value heads, K head dim.
#include "model/ops/attention.h"
#include "tests/ops/attention_sequences.h"
#include "tests/ops/cuda_op_test.h"

namespace grpo::ops {
namespace {

constexpr float kScale = 0.3f;

struct AttentionCase {
  std::vector<int32_t> lengths;
  AttentionSizes sizes;
};

// Sequences on the host and the same on the device.
class CudaAttention : public CudaOpTestTensors {
 protected:
  KvView to_cuda(const KvView& view) {
    KvView result = view;
    for (Tensor* tensor : {&result.keys, &result.values, &result.query_offsets,
                           &result.context_lengths, &result.page_first_slot}) {
      *tensor = CudaOpTestTensors::to_cuda(*tensor);
    }
    return result;
  }
  using CudaOpTestTensors::to_cuda;

  // Out and lse of one pass, on the host.
  Results forward(const Tensor& q, const KvView& view) {
    const Tensor out = cuda_make(q.dtype(), q.shape());
    const Tensor lse = cuda_make(DType::kFloat32, {q.size(0), q.size(1)});
    attention_forward(out, lse, to_cuda(q), view, kScale, cuda());
    return {to_host(out), to_host(lse)};
  }

  static bool is_on_tensor_cores(const Tensor& q) {
    return q.dtype() == DType::kBfloat16 && (q.size(2) == 64 || q.size(2) == 128);
  }

  // bfloat16 values as float32, for a reference without roundings between.
  Tensor widened(const Tensor& tensor) {
    return from(DType::kFloat32, tensor.shape(), values_of(tensor));
  }

  // A sequence of one key has gradients of 0, but for roundings: they are held to this scale.
  static Values with_scale(const Tensor& gradient) {
    Values values = values_of(gradient);
    values.push_back(0.01);
    return values;
  }

  PackedSequences widened(const PackedSequences& s) {
    return {s.lengths, widened(s.q), widened(s.keys), widened(s.values)};
  }
};

class CudaAttentionTest
    : public CudaTest<::testing::TestWithParam<std::tuple<DType, AttentionCase>>, CudaAttention> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  const AttentionCase& shape() const { return std::get<1>(GetParam()); }
};

// On tensor cores (bfloat16 of 64 and 128) and not; one row, tiles' borders, groups of 1 to 67.
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaAttentionTest,
    ::testing::Combine(
        ::testing::ValuesIn(kActivationDTypes),
        ::testing::Values(AttentionCase{{1}, {1, 1, 8}}, AttentionCase{{5, 0, 2}, {2, 1, 8}},
                          AttentionCase{{71, 32}, {6, 2, 24}}, AttentionCase{{40}, {67, 1, 8}},
                          AttentionCase{{1}, {2, 1, 64}},
                          AttentionCase{{97, 0, 3, 64}, {14, 2, 64}},
                          AttentionCase{{131}, {3, 3, 64}}, AttentionCase{{65, 30}, {28, 4, 128}},
                          AttentionCase{{33}, {67, 1, 64}})),
    [](const auto& test) {
      const AttentionCase& c = std::get<1>(test.param);
      return case_name(std::get<0>(test.param),
                       {c.lengths[0], c.sizes.heads, c.sizes.kv_heads, c.sizes.head_dim});
    });

TEST_P(CudaAttentionTest, ForwardIsTheCpus) {
  const PackedSequences sequences =
      random_sequences(*this, dtype(), shape().lengths, shape().sizes);
  const KvView view = packed_view(*this, sequences);
  const KvView view_there = to_cuda(view);
  const Results results = forward(sequences.q, view_there);
  const Results again = forward(sequences.q, view_there);
  expect_same_bits(again[0], results[0], "out again");
  const Tensor without_lse = cuda_make(dtype(), sequences.q.shape());
  attention_forward(without_lse, Tensor(), to_cuda(sequences.q), view_there, kScale, cuda());
  expect_same_bits(to_host(without_lse), results[0], "out without lse");

  const Shape lse_shape{sequences.num_rows(), shape().sizes.heads};
  const Tensor lse = make(DType::kFloat32, lse_shape);
  if (is_on_tensor_cores(sequences.q)) {
    const PackedSequences wide = widened(sequences);
    const Tensor out = make(DType::kFloat32, sequences.q.shape());
    attention_forward(out, lse, wide.q, packed_view(*this, wide), kScale, ctx());
    expect_close(results[0], values_of(out), kTensorCoreAttention, "out");
  } else {
    const Tensor out = make(dtype(), sequences.q.shape());
    attention_forward(out, lse, sequences.q, view, kScale, ctx());
    expect_same_bits(results[0], out, "out");
  }
  expect_close(results[1], values_of(lse), kTensorCoreAttention, "lse");
}

// Passes of `step` rows a sequence over pages whose free slots hold NaN; sequences start one pass
// after another, so that every pass mixes different positions.
TEST_P(CudaAttentionTest, PagedPassesGiveTheSameBits) {
  const PackedSequences sequences =
      random_sequences(*this, dtype(), shape().lengths, shape().sizes);
  const Results whole = forward(sequences.q, to_cuda(packed_view(*this, sequences)));
  const size_t count = sequences.lengths.size();
  const int64_t longest = *std::max_element(shape().lengths.begin(), shape().lengths.end());
  for (const auto& [page_size, step] :
       {std::pair<int64_t, int64_t>{1, 19}, {16, 1}, {64, 7}, {64, longest}, {96, 32}}) {
    PagedCache cache(*this, sequences, page_size);
    const int64_t num_passes = (longest + step - 1) / step + static_cast<int64_t>(count) - 1;
    for (int64_t pass = 0; pass < num_passes; ++pass) {
      std::vector<int64_t> begins;
      std::vector<int64_t> ends;
      for (size_t s = 0; s < count; ++s) {
        const int64_t turn = pass - static_cast<int64_t>(s);
        begins.push_back(std::clamp<int64_t>(turn * step, 0, sequences.lengths[s]));
        ends.push_back(std::clamp<int64_t>((turn + 1) * step, 0, sequences.lengths[s]));
        cache.append(s, begins.back(), ends.back());
      }
      const KvView view = cache.view(begins, ends);
      const int32_t* offsets = view.query_offsets.data<int32_t>();
      const Tensor q = make(dtype(), {offsets[count], shape().sizes.heads, shape().sizes.head_dim});
      const auto each_sequence = [&](const auto& function) {
        for (size_t s = 0; s < count; ++s)
          function(offsets[s], sequences.first_row(s) + begins[s], ends[s] - begins[s]);
      };
      each_sequence([&](int64_t row, int64_t first, int64_t added) {
        copy_tensor(q.rows(row, added), sequences.q.rows(first, added));
      });
      const Results part = forward(q, to_cuda(view));
      each_sequence([&](int64_t row, int64_t first, int64_t added) {
        expect_same_bits(part[0].rows(row, added), whole[0].rows(first, added), "out");
        expect_same_bits(part[1].rows(row, added), whole[1].rows(first, added), "lse");
      });
      ASSERT_FALSE(HasFailure()) << "page size " << page_size << ", step " << step << ", pass "
                                 << pass;
    }
  }
}

// The negative control, which decode uses: close, the same bits as long as one tile holds all keys,
// others after.
TEST_P(CudaAttentionTest, NarrowTilesGiveOtherBits) {
  const PackedSequences sequences =
      random_sequences(*this, dtype(), shape().lengths, shape().sizes);
  const KvView view = packed_view(*this, sequences);
  const Results wide = forward(sequences.q, to_cuda(view));
  cuda().numerics.narrow_kv_tiles = true;
  const Results narrow = forward(sequences.q, to_cuda(view));
  expect_close(narrow[0], values_of(wide[0]),
               is_on_tensor_cores(sequences.q) ? kTensorCoreAttention : kAttention, "out");
  const int64_t same = std::min<int64_t>(shape().lengths[0], kNarrowTileKeys);
  expect_same_bits(narrow[0].rows(0, same), wide[0].rows(0, same), "rows of one tile");
  if (shape().lengths[0] > 30) {
    EXPECT_NE(0, std::memcmp(narrow[0].raw(), wide[0].raw(), wide[0].size_bytes()));
  }
  if (is_on_tensor_cores(sequences.q)) return;
  ctx().numerics.narrow_kv_tiles = true;
  const Tensor wanted = make(dtype(), sequences.q.shape());
  attention_forward(wanted, Tensor(), sequences.q, view, kScale, ctx());
  expect_same_bits(narrow[0], wanted, "out");
}

TEST_P(CudaAttentionTest, BackwardIsTheCpus) {
  const PackedSequences sequences =
      random_sequences(*this, dtype(), shape().lengths, shape().sizes);
  const KvView view = to_cuda(packed_view(*this, sequences));
  const Tensor dout = random(dtype(), sequences.q.shape());
  const Shape kv_shape = sequences.keys.shape();
  const auto backward = [&](const Tensor& out, const Tensor& lse) {
    const AttentionGradients gradients{cuda_make(dtype(), dout.shape()),
                                       cuda_make(dtype(), kv_shape), cuda_make(dtype(), kv_shape)};
    attention_backward(gradients, to_cuda(dout), {to_cuda(sequences.q), to_cuda(out), to_cuda(lse)},
                       view, kScale, cuda());
    return Results{to_host(gradients.dq), to_host(gradients.dkeys), to_host(gradients.dvalues)};
  };
  const bool exact = !is_on_tensor_cores(sequences.q);
  const PackedSequences reference = exact ? sequences : widened(sequences);
  const DType wanted_dtype = reference.q.dtype();
  const KvView reference_view = packed_view(*this, reference);
  const Tensor out = make(wanted_dtype, dout.shape());
  const Tensor lse = make(DType::kFloat32, {dout.size(0), dout.size(1)});
  attention_forward(out, lse, reference.q, reference_view, kScale, ctx());
  const AttentionGradients wanted{make(wanted_dtype, dout.shape()), make(wanted_dtype, kv_shape),
                                  make(wanted_dtype, kv_shape)};
  attention_backward(wanted, exact ? dout : widened(dout), {reference.q, out, lse}, reference_view,
                     kScale, ctx());
  const Tensor saved_out = from(dtype(), out.shape(), values_of(out));
  const Results results = backward(saved_out, lse);
  const Results again = backward(saved_out, lse);
  const Tensor* all_wanted[] = {&wanted.dq, &wanted.dkeys, &wanted.dvalues};
  for (size_t i = 0; i < results.size(); ++i) {
    expect_same_bits(again[i], results[i], "second run");
    if (exact) {
      expect_same_bits(results[i], *all_wanted[i], "gradient");
    } else {
      expect_close(with_scale(results[i]), with_scale(*all_wanted[i]),
                   kAttentionGradient.of(dtype()), "gradient");
    }
  }
}

struct ExactnessCase {
  DType dtype;
  AttentionSizes sizes;
  int32_t longest;
};

class CudaAttentionExactnessTest
    : public CudaTest<::testing::TestWithParam<ExactnessCase>, CudaAttention> {};

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaAttentionExactnessTest,
    ::testing::Values(ExactnessCase{DType::kBfloat16, {14, 2, 64}, 1024},
                      ExactnessCase{DType::kBfloat16, {12, 2, 128}, 600},
                      ExactnessCase{DType::kBfloat16, {16, 8, 64}, 300},
                      ExactnessCase{DType::kFloat32, {14, 2, 64}, 200}),
    [](const auto& test) {
      const ExactnessCase& c = test.param;
      return case_name(c.dtype, {c.longest, c.sizes.heads, c.sizes.kv_heads, c.sizes.head_dim});
    });

// All rows of a sequence as decode steps after every prefix, and as chunks, in batches of many
// sizes over pages of many sizes: each the bits of the row of one packed pass.
TEST_P(CudaAttentionExactnessTest, EveryPrefixAndChunk) {
  const ExactnessCase& c = GetParam();
  // Packed behind another sequence, of which nothing may be seen.
  const PackedSequences sequences = random_sequences(*this, c.dtype, {77, c.longest, 13}, c.sizes);
  const Results whole = forward(sequences.q, to_cuda(packed_view(*this, sequences)));
  constexpr int64_t kFirst = 77;
  for (const int64_t page_size : {16, 24, 64, 128, 4096}) {
    PagedCache cache(*this, sequences, page_size);
    for (const size_t s : {0, 1, 2}) cache.append(s, 0, sequences.lengths[s]);
    const KvView all = cache.view({0, 0, 0}, {77, c.longest, 13});
    const Tensor keys = to_cuda(all.keys);
    const Tensor values = to_cuda(all.values);
    const int64_t max_pages = all.page_first_slot.size(1);
    const int32_t* pages = all.page_first_slot.data<int32_t>() + max_pages;
    for (const auto& [step, batch] : {std::pair<int64_t, int64_t>{1, 1024},
                                      {1, 512},
                                      {1, 64},
                                      {1, 7},
                                      {2, 33},
                                      {3, 5},
                                      {16, 64},
                                      {64, 3},
                                      {100, 2},
                                      {513, 1}}) {
      if (step == 1 && batch == 7 && page_size != 64) continue;  // many passes
      for (int64_t begin = 0; begin < c.longest; begin += step * batch) {
        std::vector<int32_t> offsets{0};
        std::vector<int32_t> lengths;
        std::vector<int32_t> slots;
        const int64_t end = std::min<int64_t>(begin + step * batch, c.longest);
        for (int64_t row = begin; row < end; row += step) {
          const int64_t next = std::min(row + step, end);
          offsets.push_back(offsets.back() + static_cast<int32_t>(next - row));
          lengths.push_back(static_cast<int32_t>(next));
          slots.insert(slots.end(), pages, pages + max_pages);
        }
        const auto count = static_cast<int64_t>(lengths.size());
        const KvView view{keys,
                          values,
                          to_cuda(ints({count + 1}, offsets)),
                          to_cuda(ints({count}, lengths)),
                          to_cuda(ints({count, max_pages}, slots)),
                          page_size,
                          step,
                          end};
        const Results part = forward(sequences.q.rows(kFirst + begin, end - begin), view);
        expect_same_bits(part[0], whole[0].rows(kFirst + begin, end - begin), "out");
        expect_same_bits(part[1], whole[1].rows(kFirst + begin, end - begin), "lse");
        ASSERT_FALSE(HasFailure()) << "page size " << page_size << ", chunks of " << step
                                   << ", batch " << batch << ", from row " << begin;
      }
    }
  }
}

class CudaAttentionEdgeTest : public CudaTest<::testing::Test, CudaAttention> {};

TEST_F(CudaAttentionEdgeTest, LargeScoresStayFinite) {
  for (const DType dtype : kActivationDTypes) {
    const PackedSequences sequences =
        random_sequences(*this, dtype, {70}, AttentionSizes{2, 1, 64});
    const Tensor out = cuda_make(dtype, sequences.q.shape());
    const Tensor lse = cuda_make(DType::kFloat32, {70, 2});
    attention_forward(out, lse, to_cuda(sequences.q), to_cuda(packed_view(*this, sequences)), 1e4f,
                      cuda());
    for (const double value : values_of(to_host(out))) ASSERT_TRUE(std::isfinite(value));
    for (const double value : values_of(to_host(lse))) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST_F(CudaAttentionEdgeTest, ZeroRows) {
  for (const DType dtype : kActivationDTypes) {
    const Tensor q = cuda_make(dtype, {0, 4, 64});
    const Tensor keys = cuda_make(dtype, {0, 2, 64});
    const Tensor lse = cuda_make(DType::kFloat32, {0, 4});
    const KvView none = to_cuda(KvView{make(dtype, {0, 2, 64}), make(dtype, {0, 2, 64}),
                                       ints({1}, {0}), ints({0}, {}), ints({0, 1}, {}), 16, 0, 0});
    attention_forward(q, lse, q, none, kScale, cuda());
    attention_backward({q, keys, keys}, q, {q, q, lse}, none, kScale, cuda());
  }
}

}  // namespace
}  // namespace grpo::ops
