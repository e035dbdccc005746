#include "model/product_probe.h"

#include <set>
#include <tuple>

#include "model/ops/linear.h"

namespace grpo::model {

namespace {

class ProductProbe {
 public:
  explicit ProductProbe(OpContext& ctx) : ctx_(ctx) {}

  void check(const Tensor& weight, const Tensor& bias, DType product, int64_t max_rows) {
    const auto shape =
        std::tuple(weight.size(0), weight.size(1), bias.is_absent(), product, max_rows);
    if (!checked_.insert(shape).second) return;
    ops::check_linear_exactness(weight, bias, product, max_rows, ctx_);
  }

  int64_t num_shapes() const { return static_cast<int64_t>(checked_.size()); }

 private:
  OpContext& ctx_;
  std::set<std::tuple<int64_t, int64_t, bool, DType, int64_t>> checked_;
};

}  // namespace

int64_t probe_products(const TransformerParameters& parameters, ParameterStore& store,
                       const UseSchedule& schedule, const ProbeRows& rows, OpContext& ctx) {
  ProductProbe probe(ctx);
  const std::unique_ptr<Pass> pass = store.begin_pass(schedule);
  const DType dtype = store.dtype();
  const auto check = [&](ParameterId id, DType product, int64_t max_rows) {
    const MaterializedWeight weight = pass->use(id);
    probe.check(weight.tensor(), Tensor(), product, max_rows);
  };
  pass->use(parameters.embedding);
  for (const LayerParameters& layer : parameters.layers) {
    pass->use(layer.input_norm);
    {
      const MaterializedWeight weight = pass->use(layer.qkv_weight);
      const MaterializedWeight bias = pass->use(layer.qkv_bias);
      probe.check(weight.tensor(), bias.tensor(), dtype, rows.layers);
    }
    check(layer.o_weight, dtype, rows.layers);
    pass->use(layer.post_norm);
    check(layer.gate_up_weight, dtype, rows.layers);
    check(layer.down_weight, dtype, rows.layers);
  }
  pass->use(parameters.final_norm);
  check(parameters.head, DType::kFloat32, rows.head);
  pass->finish();
  return probe.num_shapes();
}

}  // namespace grpo::model
