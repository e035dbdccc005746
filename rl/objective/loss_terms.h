// The formulas of one token (or one sequence's ratio) that the loss is assembled from. Pure
// functions of doubles.
#pragma once

#include "rl/objective/loss.h"

namespace grpo::rl {

// A value and its derivative with respect to the one variable that its function names.
struct Differentiated {
  double value;
  double derivative;
};

enum class KlEstimator { kK1, kK2, kK3 };

// "k1", "k2" or "k3"; anything else is an InternalError.
KlEstimator kl_estimator(const std::string& name);

// Schulman's estimators of KL(p || r) from q = log r - log p: k1 = -q, k2 = q^2 / 2, k3 = exp(q) -
// 1 - q. The derivative is that in log p, i.e. in -q.
Differentiated kl_from_log_ratio(KlEstimator estimator, double q);

// h(p-M)/2 + h(g-M)/2 with h(x) = exp(x) - 1 - x and M = log((exp p + exp g) / 2); 0 where p == g.
double js_divergence(double p, double g);

// The clipped surrogate: max(-A ratio, -A clipped), bounded by -A ratio_clip_c where A < 0.
// The derivative is that in the ratio.
Differentiated clipped_surrogate(const LossConfig& config, double advantage, double ratio);

// A token's KL penalty in the value convention kl = v k (header of loss.h), and its gradient in
// c_u.
Differentiated kl_penalty_term(const LossConfig& config, double current_unfiltered,
                               double generation, double reference);

struct ImportanceWeight {
  double value;
  bool out_of_bounds;
};

// A raw weight after tis or icepop; unchanged for other types.
ImportanceWeight truncate_importance_weight(const LossConfig& config, double weight);

// [min or 0, max], inclusive; everything without a bound.
bool is_importance_ratio_in_bounds(const LossConfig& config, double ratio);

}  // namespace grpo::rl
