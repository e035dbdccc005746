#include "rl/config/sft_config.h"

#include "model/core/config_range.h"

namespace grpo::rl {

void SftConfig::visit(ConfigVisitor& visitor) {
  visitor.field("max_num_epochs", max_num_epochs,
                "passes over data.train, in whole steps, at most; 0 for no limit");
  visitor.field("max_num_steps", max_num_steps, "steps of the run, at most");
  visitor.field("val_batches", val_batches,
                "batches of each validation dataset; 0 takes all of it");
  visitor.field("val_global_batch_size", val_global_batch_size, "examples a validation batch");
  visitor.field("seed", seed, "keys initialisation and data order");
  visit_fields(visitor, validation);
  visit_section(visitor, "early_stop", "end a run that no longer improves", early_stop);
}

void SftConfig::validate(const ConfigVisitor& visitor) const {
  require_range<int64_t>(visitor, "max_num_epochs", max_num_epochs, 0, kMaxSteps);
  require_range<int64_t>(visitor, "max_num_steps", max_num_steps, 1, kMaxSteps);
  require_range<int64_t>(visitor, "val_batches", val_batches, 0, kMaxSteps);
  require_range<int64_t>(visitor, "val_global_batch_size", val_global_batch_size, 1, kMaxSequences);
  require_range<int64_t>(visitor, "seed", seed, 0, INT64_MAX);
}

}  // namespace grpo::rl
