// KeptTokens: which tokens the sampling filters kept in each of a sequence of rows, stored so that
// training applies the same sets under later weights.
//
// A row's set is stored as ascending token ids, or, when it has more than the filter's
// max_kept_ids, as a threshold. With z the row's logits times the inverse temperature and lse their
// log-sum-exp over the whole vocabulary, both in float64, token v belongs to a thresholded set when
// z[v] - lse > above, or z[v] - lse == above and v <= last_tie. The threshold lies in the middle
// between the last kept and the first dropped logit, so that rounding noise of later weights moves
// no token across it; where these two are equal it is that logit, and last_tie tells them apart.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace grpo::ops {

// The default keeps everything.
struct KeptThreshold {
  double above = -std::numeric_limits<double>::infinity();
  int32_t last_tie = std::numeric_limits<int32_t>::max();

  friend bool operator==(const KeptThreshold&, const KeptThreshold&) = default;
};

// The threshold between two neighbours in a row's order (logit descending, id ascending). -infinity
// as first_dropped: only tokens of probability 0 were dropped.
struct KeptBorder {
  float last_kept;  // scaled logits
  float first_dropped;
  int32_t last_kept_token;
  double log_sum_exp;
};
KeptThreshold threshold_at(const KeptBorder& border);
// Whether float64 tells the two sides of a border apart; where it does not, the set needs its ids.
bool separates(const KeptThreshold& threshold, const KeptBorder& border);

// Consecutive rows of a KeptTokens, not owned. The default view is absent: every row keeps every
// token.
struct KeptTokensView {
  const uint32_t* offsets = nullptr;  // [rows + 1] into ids; a row without ids has a threshold
  const uint32_t* ids = nullptr;      // of all rows
  const KeptThreshold* thresholds = nullptr;  // [rows]; null when every row has ids
  int64_t num_rows = 0;

  bool is_absent() const { return offsets == nullptr; }
  std::span<const uint32_t> row_ids(int64_t row) const {
    return {ids + offsets[row], ids + offsets[row + 1]};
  }
  KeptThreshold threshold(int64_t row) const {
    return thresholds == nullptr ? KeptThreshold{} : thresholds[row];
  }
  KeptTokensView rows(int64_t begin, int64_t count) const {
    if (is_absent()) return {};
    return {offsets + begin, ids, thresholds == nullptr ? nullptr : thresholds + begin, count};
  }
};

// Whether row `row` of both is the same set, stored in the same way.
bool same_tokens(const KeptTokensView& a, const KeptTokensView& b, int64_t row);

class KeptTokens {
 public:
  int64_t num_rows() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  int64_t num_ids() const { return static_cast<int64_t>(ids_.size()); }
  bool has_thresholds() const { return !thresholds_.empty(); }
  bool empty() const { return num_rows() == 0; }

  void append_ids(std::span<const uint32_t> ids);  // ascending, at least one
  void append_threshold(const KeptThreshold& threshold);
  void append_everything(int64_t num_rows);
  void append_row(const KeptTokensView& from, int64_t row);
  void append(const KeptTokensView& rows);
  void clear() { *this = {}; }

  // Valid until the next change; absent when there are no rows.
  KeptTokensView view() const;

  // Memory of a set of rows, to send and to store: offsets, then ids, then thresholds.
  static int64_t packed_bytes(int64_t num_rows, int64_t num_ids, bool has_thresholds);
  void pack(std::span<std::byte> bytes) const;
  static KeptTokens unpack(std::span<const std::byte> bytes, int64_t num_rows, int64_t num_ids,
                           bool has_thresholds);

  friend bool operator==(const KeptTokens&, const KeptTokens&) = default;

 private:
  std::vector<uint32_t> offsets_ = {0};
  std::vector<uint32_t> ids_;
  std::vector<KeptThreshold> thresholds_;  // one a row once any row has one
};

// A row's set as comparisons of its own scaled logits z: token v is kept when z[v] >= above, or
// z[v] >= tie and v <= last_tie. The default keeps everything.
struct RowCut {
  float above = -std::numeric_limits<float>::infinity();
  float tie = -std::numeric_limits<float>::infinity();
  int32_t last_tie = std::numeric_limits<int32_t>::max();

  bool keeps(float scaled_logit, int32_t token) const {
    return scaled_logit >= (token <= last_tie ? tie : above);
  }
  bool keeps_everything() const {
    return tie == -std::numeric_limits<float>::infinity() &&
           last_tie == std::numeric_limits<int32_t>::max();
  }
};

// Exactly the tokens that the threshold keeps in a row of this log-sum-exp.
RowCut row_cut_of(const KeptThreshold& threshold, double log_sum_exp);

}  // namespace grpo::ops
