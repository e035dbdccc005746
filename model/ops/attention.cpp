#include "model/ops/attention.h"

#include <algorithm>

#include "model/ops/cpu/entry_points.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/dispatch.h"
#include "model/ops/operand_checks.h"

namespace grpo::ops {

namespace {

// Shapes of the view against queries [T, H, K], and H a multiple of G.
void check_view(const OperandChecks& checks, const char* op, const Tensor& q, const KvView& kv) {
  checks.expect_rank("q", q, 3);
  checks.expect_activation("q", q);
  checks.expect_rank("kv.keys", kv.keys, 3);
  checks.expect("kv.keys", kv.keys, q.dtype(), {kv.keys.size(0), kv.keys.size(1), q.size(2)});
  checks.expect("kv.values", kv.values, q.dtype(), kv.keys.shape());
  checks.expect_rank("kv.context_lengths", kv.context_lengths, 1);
  const int64_t num_sequences = kv.context_lengths.size(0);
  checks.expect("kv.context_lengths", kv.context_lengths, DType::kInt32, {num_sequences});
  checks.expect("kv.query_offsets", kv.query_offsets, DType::kInt32, {num_sequences + 1});
  checks.expect_rank("kv.page_first_slot", kv.page_first_slot, 2);
  checks.expect("kv.page_first_slot", kv.page_first_slot, DType::kInt32,
                {num_sequences, kv.page_first_slot.size(1)});
  CHECK(kv.page_size_tokens > 0, "{}: page size {} tokens", op, kv.page_size_tokens);
  CHECK(kv.keys.size(1) > 0 && q.size(1) % kv.keys.size(1) == 0,
        "{}: {} query heads over {} key/value heads", op, q.size(1), kv.keys.size(1));
  CHECK(q.size(2) > 0 && q.size(2) % 8 == 0, "{}: head dim {} is not a multiple of 8", op,
        q.size(2));
}

// Lengths, offsets and slots lie within the tensors. CPU only: on a GPU these live in device
// memory.
void check_sequences(const char* op, const Tensor& q, const KvView& kv) {
  const int32_t* offsets = kv.query_offsets.data<int32_t>();
  const int32_t* lengths = kv.context_lengths.data<int32_t>();
  const int64_t num_sequences = kv.context_lengths.size(0);
  const int64_t max_pages = kv.page_first_slot.size(1);
  CHECK(offsets[0] == 0 && offsets[num_sequences] == q.size(0),
        "{}: query_offsets run from {} to {}, wanted 0 to {}", op, offsets[0],
        offsets[num_sequences], q.size(0));
  for (int64_t s = 0; s < num_sequences; ++s) {
    const int64_t rows = offsets[s + 1] - offsets[s];
    CHECK(rows >= 0 && rows <= lengths[s], "{}: sequence {} has {} query rows and {} keys", op, s,
          rows, lengths[s]);
    CHECK(rows <= kv.max_query_rows && lengths[s] <= kv.max_context_tokens,
          "{}: sequence {} has {} query rows and {} keys, the view states at most {} and {}", op, s,
          rows, lengths[s], kv.max_query_rows, kv.max_context_tokens);
    if (rows == 0) continue;
    const int64_t num_pages = (lengths[s] + kv.page_size_tokens - 1) / kv.page_size_tokens;
    CHECK(num_pages <= max_pages, "{}: sequence {} of {} keys needs {} pages, the view has {}", op,
          s, lengths[s], num_pages, max_pages);
    for (int64_t page = 0; page < num_pages; ++page) {
      const int64_t first = kv.page_first_slot.data<int32_t>()[s * max_pages + page];
      const int64_t keys = std::min(kv.page_size_tokens, lengths[s] - page * kv.page_size_tokens);
      CHECK(first >= 0 && first + keys <= kv.keys.size(0),
            "{}: sequence {} page {} is slots [{}, {}) of {}", op, s, page, first, first + keys,
            kv.keys.size(0));
    }
  }
}

// Every query row is a key, in one page at the sequence's own rows.
void check_packed(const char* op, const KvView& kv) {
  const int32_t* offsets = kv.query_offsets.data<int32_t>();
  const int64_t max_pages = kv.page_first_slot.size(1);
  for (int64_t s = 0; s < kv.context_lengths.size(0); ++s) {
    const int64_t rows = offsets[s + 1] - offsets[s];
    if (rows == 0) continue;
    CHECK(kv.context_lengths.data<int32_t>()[s] == rows && rows <= kv.page_size_tokens &&
              kv.page_first_slot.data<int32_t>()[s * max_pages] == offsets[s],
          "{}: sequence {} is not packed", op, s);
  }
}

}  // namespace

void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& q, const KvView& kv,
                       float scale, OpContext& ctx) {
  const char* op = "attention_forward";
  const OperandChecks checks(op, ctx);
  check_view(checks, op, q, kv);
  checks.expect("out", out, q.dtype(), q.shape());
  checks.expect_if_present("lse", lse, DType::kFloat32, {q.size(0), q.size(1)});
  dispatch<Scratch::kTakes>(
      op, q.dtype(), ctx,
      [&]<typename A>(A) {
        check_sequences(op, q, kv);
        cpu::attention_forward<A>(out, lse, q, kv, scale, ctx);
      },
      [&] { cuda::attention_forward(out, lse, q, kv, scale, ctx); });
}

void attention_backward(const AttentionGradients& gradients, const Tensor& dout,
                        const AttentionSaved& saved, const KvView& kv, float scale,
                        OpContext& ctx) {
  const char* op = "attention_backward";
  const OperandChecks checks(op, ctx);
  check_view(checks, op, saved.q, kv);
  const Tensor& q = saved.q;
  const Shape kv_shape{q.size(0), kv.keys.size(1), q.size(2)};
  checks.expect("kv.keys", kv.keys, q.dtype(), kv_shape);
  checks.expect("dq", gradients.dq, q.dtype(), q.shape());
  checks.expect("dkeys", gradients.dkeys, q.dtype(), kv_shape);
  checks.expect("dvalues", gradients.dvalues, q.dtype(), kv_shape);
  checks.expect("dout", dout, q.dtype(), q.shape());
  checks.expect("out", saved.out, q.dtype(), q.shape());
  checks.expect("lse", saved.lse, DType::kFloat32, {q.size(0), q.size(1)});
  dispatch<Scratch::kTakes>(
      op, q.dtype(), ctx,
      [&]<typename A>(A) {
        check_sequences(op, q, kv);
        check_packed(op, kv);
        cpu::attention_backward<A>(gradients, dout, saved, kv, scale, ctx);
      },
      [&] { cuda::attention_backward(gradients, dout, saved, kv, scale, ctx); });
}

}  // namespace grpo::ops
