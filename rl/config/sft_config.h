// SftConfig: the loop of `algorithm: sft`.
#pragma once

#include <cstdint>

#include "model/core/config_visitor.h"
#include "rl/config/validation_config.h"
#include "rl/state/early_stop.h"

namespace grpo::rl {

struct SftConfig {
  int64_t max_num_epochs = 0;  // passes over the data; 0: no limit
  int64_t max_num_steps = 10;
  int64_t val_batches = 0;  // of each validation dataset; 0: all
  int64_t val_global_batch_size = 32;
  int64_t seed = 42;
  ValidationPeriods validation;
  EarlyStopConfig early_stop;

  void visit(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
};

}  // namespace grpo::rl
