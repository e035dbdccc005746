#include "model/ops/kept_tokens.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "model/core/errors.h"

namespace grpo::ops {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Floats in ascending order as unsigned integers, and back.
uint32_t ordered_bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

float float_of(uint32_t ordered) {
  return std::bit_cast<float>((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

// The smallest float that has an ascending property; infinity when no finite one has.
template <typename Property>
float smallest_with(const Property& property) {
  uint32_t first = ordered_bits(-kInfinity);
  uint32_t last = ordered_bits(kInfinity);
  while (first < last) {
    const uint32_t middle = first + (last - first) / 2;
    if (property(float_of(middle))) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return float_of(first);
}

double relative(float scaled_logit, double log_sum_exp) {
  return static_cast<double>(scaled_logit) - log_sum_exp;
}

}  // namespace

KeptThreshold threshold_at(const KeptBorder& border) {
  if (border.first_dropped == -kInfinity) return {std::numeric_limits<double>::lowest(), -1};
  if (border.first_dropped == border.last_kept) {
    return {relative(border.last_kept, border.log_sum_exp), border.last_kept_token};
  }
  const double middle =
      (static_cast<double>(border.last_kept) + static_cast<double>(border.first_dropped)) * 0.5;
  return {middle - border.log_sum_exp, -1};
}

bool separates(const KeptThreshold& threshold, const KeptBorder& border) {
  if (border.first_dropped == border.last_kept) return true;
  return relative(border.last_kept, border.log_sum_exp) > threshold.above &&
         relative(border.first_dropped, border.log_sum_exp) < threshold.above;
}

bool same_tokens(const KeptTokensView& a, const KeptTokensView& b, int64_t row) {
  const std::span<const uint32_t> a_ids = a.row_ids(row);
  const std::span<const uint32_t> b_ids = b.row_ids(row);
  return std::equal(a_ids.begin(), a_ids.end(), b_ids.begin(), b_ids.end()) &&
         (!a_ids.empty() || a.threshold(row) == b.threshold(row));
}

void KeptTokens::append_ids(std::span<const uint32_t> ids) {
  CHECK(!ids.empty(), "a set of no tokens");
  if (has_thresholds()) thresholds_.emplace_back();
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  offsets_.push_back(static_cast<uint32_t>(ids_.size()));
}

void KeptTokens::append_threshold(const KeptThreshold& threshold) {
  thresholds_.resize(static_cast<size_t>(num_rows()));
  thresholds_.push_back(threshold);
  offsets_.push_back(offsets_.back());
}

void KeptTokens::append_everything(int64_t num_rows) {
  for (int64_t row = 0; row < num_rows; ++row) append_threshold({});
}

void KeptTokens::append_row(const KeptTokensView& from, int64_t row) {
  const std::span<const uint32_t> ids = from.row_ids(row);
  if (ids.empty()) {
    append_threshold(from.threshold(row));
  } else {
    append_ids(ids);
  }
}

void KeptTokens::append(const KeptTokensView& rows) {
  for (int64_t row = 0; row < rows.num_rows; ++row) append_row(rows, row);
}

KeptTokensView KeptTokens::view() const {
  if (empty()) return {};
  return {offsets_.data(), ids_.data(), has_thresholds() ? thresholds_.data() : nullptr,
          num_rows()};
}

int64_t KeptTokens::packed_bytes(int64_t num_rows, int64_t num_ids, bool has_thresholds) {
  const auto word = static_cast<int64_t>(sizeof(uint32_t));
  const auto threshold = static_cast<int64_t>(sizeof(double) + sizeof(int32_t));
  return num_rows * word + num_ids * word + (has_thresholds ? num_rows * threshold : 0);
}

void KeptTokens::pack(std::span<std::byte> bytes) const {
  CHECK(static_cast<int64_t>(bytes.size()) == packed_bytes(num_rows(), num_ids(), has_thresholds()),
        "{} bytes for {} rows, {} ids", bytes.size(), num_rows(), num_ids());
  std::byte* out = bytes.data();
  const auto put = [&](const void* data, size_t size) {
    if (size != 0) std::memcpy(out, data, size);
    out += size;
  };
  put(offsets_.data() + 1, (offsets_.size() - 1) * sizeof(uint32_t));
  put(ids_.data(), ids_.size() * sizeof(uint32_t));
  for (const KeptThreshold& threshold : thresholds_) {
    put(&threshold.above, sizeof(double));
    put(&threshold.last_tie, sizeof(int32_t));
  }
}

KeptTokens KeptTokens::unpack(std::span<const std::byte> bytes, int64_t num_rows, int64_t num_ids,
                              bool has_thresholds) {
  CHECK(static_cast<int64_t>(bytes.size()) == packed_bytes(num_rows, num_ids, has_thresholds),
        "{} bytes for {} rows, {} ids", bytes.size(), num_rows, num_ids);
  const std::byte* in = bytes.data();
  const auto get = [&](void* data, size_t size) {
    if (size != 0) std::memcpy(data, in, size);
    in += size;
  };
  KeptTokens kept;
  kept.offsets_.resize(static_cast<size_t>(num_rows) + 1);
  kept.ids_.resize(static_cast<size_t>(num_ids));
  get(kept.offsets_.data() + 1, static_cast<size_t>(num_rows) * sizeof(uint32_t));
  get(kept.ids_.data(), kept.ids_.size() * sizeof(uint32_t));
  CHECK(std::is_sorted(kept.offsets_.begin(), kept.offsets_.end()) &&
            kept.offsets_.back() == kept.ids_.size(),
        "the offsets of {} rows do not fit {} ids", num_rows, num_ids);
  if (has_thresholds) kept.thresholds_.resize(static_cast<size_t>(num_rows));
  for (KeptThreshold& threshold : kept.thresholds_) {
    get(&threshold.above, sizeof(double));
    get(&threshold.last_tie, sizeof(int32_t));
  }
  return kept;
}

RowCut row_cut_of(const KeptThreshold& threshold, double log_sum_exp) {
  return {smallest_with([&](float z) { return relative(z, log_sum_exp) > threshold.above; }),
          smallest_with([&](float z) { return relative(z, log_sum_exp) >= threshold.above; }),
          threshold.last_tie};
}

}  // namespace grpo::ops
