// Validation: which data, and at which steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/core/config_visitor.h"
#include "rl/data/prompt_dataset.h"

namespace grpo::rl {

struct ValidationDatasetConfig {
  std::string name = "validation";  // metrics validation/<name>/..., when there are several
  std::string path;
  std::optional<std::string> prompt_template = std::nullopt;    // null: data.train's
  std::optional<std::string> answer_template = std::nullopt;    // null: data.train's
  std::optional<std::string> response_template = std::nullopt;  // null: data.train's
  int64_t max_input_seq_length = 0;

  void visit(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
  // In the file's order; `train` supplies what is null.
  DatasetConfig dataset(const DatasetConfig& train) const;
};

// Keys of a section with more keys: NeMo-RL has them beside max_num_steps.
struct ValidationPeriods {
  int64_t val_period = 10;
  bool val_at_start = false;
  bool val_at_end = false;

  void visit(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
  bool is_due(int64_t step, int64_t last_step) const;
};

}  // namespace grpo::rl
