// Squares on fixed grids: their sums depend on neither order nor grouping.
//
// The square of a float is exact in double. Beside a largest square below 2^top it is rounded to a
// multiple of 2^(top - 46), and what remains to one of 2^(top - 92); both parts of up to
// kMaxSquaresInDouble squares add up in double without rounding, and such sums of up to 2^34
// squares in FixedPoint.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define GRPO_HOST_DEVICE __host__ __device__
#else
#define GRPO_HOST_DEVICE
#endif

namespace grpo::ops {

__extension__ using FixedPoint = __int128;  // in units of 2^(top - 92)

constexpr int kGridBits = 46;
constexpr int kMaxSquaresInDouble = 64;

struct SquareParts {
  double high;
  double low;
};

class SquareGrid {
 public:
  // For magnitudes up to `largest`, which is finite.
  explicit SquareGrid(float largest)
      : unit_exponent_(2 * (largest == 0.0f ? 0 : std::ilogb(largest) + 1) - 2 * kGridBits),
        round_high_(std::ldexp(1.5, unit_exponent_ + kGridBits + 52)),
        round_low_(std::ldexp(1.5, unit_exponent_ + 52)),
        per_high_(std::ldexp(1.0, -unit_exponent_ - kGridBits)),
        per_low_(std::ldexp(1.0, -unit_exponent_)) {}

  GRPO_HOST_DEVICE SquareParts split(float x) const {
    const double square = static_cast<double>(x) * static_cast<double>(x);
    const double high = (square + round_high_) - round_high_;
    return {high, ((square - high) + round_low_) - round_low_};
  }
  // Of the parts' sums.
  GRPO_HOST_DEVICE FixedPoint units(const SquareParts& sums) const {
    return (FixedPoint{static_cast<int64_t>(sums.high * per_high_)} * (int64_t{1} << kGridBits)) +
           static_cast<int64_t>(sums.low * per_low_);
  }
  double value(FixedPoint units) const {
    return std::ldexp(static_cast<double>(units), unit_exponent_);
  }

 private:
  int unit_exponent_;
  double round_high_;  // 1.5 2^52 units: adding it rounds to the grid
  double round_low_;
  double per_high_;
  double per_low_;
};

}  // namespace grpo::ops
