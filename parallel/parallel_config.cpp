#include "parallel/parallel_config.h"

#include "model/core/errors.h"

namespace grpo::parallel {

void ParallelConfig::visit(ConfigVisitor& visitor) {
  visitor.field("tensor", tensor, "tensor-parallel degree; 1 until tensor parallelism is built");
  visitor.field("gtp_remat", gtp_remat, "ranks that share one copy of the weight matrices (GTP)");
  visitor.field("data", data, "replicas of a shard; 0 takes world size / (tensor x gtp_remat)");
  visitor.field("gtp_alignment", gtp_alignment, "rows of a shard are padded to a multiple of this");
  visitor.field("timeout_s", timeout_s, "seconds a rank waits for a peer before the run stops");
  visitor.field("device", device, "cpu, cuda, or auto: a GPU where there is one that this build can use");
}

void ParallelConfig::validate(const ConfigVisitor& visitor) const {
  if (tensor != 1) {
    throw ConfigError(fmt::format(
        "{} is {}: tensor parallelism is not built yet; allowed: 1 (use gtp_remat or data instead)",
        visitor.where("tensor"), tensor));
  }
  if (gtp_remat < 1 || gtp_remat > 4096) {
    throw ConfigError(fmt::format("{} is {}; allowed: 1 to 4096", visitor.where("gtp_remat"), gtp_remat));
  }
  if (data < 0 || data > 65536) {
    throw ConfigError(fmt::format("{} is {}; allowed: 0 to 65536", visitor.where("data"), data));
  }
  if (gtp_alignment < 1 || gtp_alignment > 4096) {
    throw ConfigError(
        fmt::format("{} is {}; allowed: 1 to 4096", visitor.where("gtp_alignment"), gtp_alignment));
  }
  if (device != "auto" && device != "cpu" && device != "cuda") {
    throw ConfigError(
        fmt::format("{} is '{}'; allowed: auto, cpu, cuda", visitor.where("device"), device));
  }
  if (!(timeout_s > 0 && timeout_s <= 1e6)) {
    throw ConfigError(
        fmt::format("{} is {}; allowed: above 0, at most 1e6", visitor.where("timeout_s"), timeout_s));
  }
}

}  // namespace grpo::parallel
