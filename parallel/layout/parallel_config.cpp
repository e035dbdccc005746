#include "parallel/layout/parallel_config.h"

#include "model/core/config_range.h"
#include "model/core/errors.h"

namespace grpo::parallel {

void ParallelConfig::visit(ConfigVisitor& visitor) {
  visitor.field("tensor", tensor, "tensor-parallel degree; 1 until tensor parallelism is built");
  visitor.field("gtp_remat", gtp_remat, "ranks that share one copy of the weight matrices (GTP)");
  visitor.field("data", data, "replicas of a shard; 0 takes world size / (tensor x gtp_remat)");
  visitor.field("gtp_alignment", gtp_alignment, "rows of a shard are padded to a multiple of this");
  visitor.field("timeout_s", timeout_s, "seconds a rank waits for a peer before the run stops");
  visitor.field("device", device,
                "cpu, cuda, or auto: a GPU where there is one that this build can use");
}

void ParallelConfig::validate(const ConfigVisitor& visitor) const {
  if (tensor != 1) {
    throw ConfigError(fmt::format(
        "{} is {}: tensor parallelism is not built yet; allowed: 1 (use gtp_remat or data instead)",
        visitor.where("tensor"), tensor));
  }
  require_range<int64_t>(visitor, "gtp_remat", gtp_remat, 1, 4096);
  require_range<int64_t>(visitor, "data", data, 0, 65536);
  require_range<int64_t>(visitor, "gtp_alignment", gtp_alignment, 1, 4096);
  if (device != "auto" && device != "cpu" && device != "cuda") {
    throw ConfigError(
        fmt::format("{} is '{}'; allowed: auto, cpu, cuda", visitor.where("device"), device));
  }
  require_range(visitor, "timeout_s", timeout_s, 0.001, 1e6);  // waits count milliseconds
}

}  // namespace grpo::parallel
