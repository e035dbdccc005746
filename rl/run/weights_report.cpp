#include "rl/run/weights_report.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/core/host_transfer.h"

namespace grpo::rl {

namespace {

// The largest magnitude of some rows; infinity when one is not finite.
double largest_of(const Tensor& rows) {
  const HostCopy copy(rows);
  double largest = 0;
  for (int64_t i = 0; i < rows.num_elements(); ++i) {
    const double value =
        rows.dtype() == DType::kFloat32
            ? copy.view().data<float>()[i]
            : static_cast<double>(static_cast<float>(copy.view().data<Bfloat16>()[i]));
    if (!std::isfinite(value)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(value));
  }
  return largest;
}

}  // namespace

std::string describe_weights(const parallel::ShardedParameterStore& store) {
  double largest = -1;
  std::string name;
  for (size_t i = 0; i < store.specs().size(); ++i) {
    const auto id = static_cast<ParameterId>(i);
    for (const parallel::ShardRegion& region : store.layout(id).regions) {
      const std::string& part = store.specs()[i].parts[static_cast<size_t>(region.part)].name;
      const double own = largest_of(store.shard(id).rows(region.stored_row, region.num_rows));
      if (std::isinf(own)) return fmt::format("the weights of '{}' are not finite", part);
      if (own <= largest) continue;
      largest = own;
      name = part;
    }
  }
  return fmt::format("this rank's weights are finite, the largest is {:.3g} in '{}'", largest,
                     name);
}

}  // namespace grpo::rl
