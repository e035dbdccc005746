// Checkpointing of a run: what is saved when, and how a run continues from it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/core/config_visitor.h"

namespace grpo::rl {

struct CheckpointingConfig {
  bool enabled = false;
  std::string checkpoint_dir;
  int64_t save_period = 10;
  int64_t keep_last = 0;
  std::optional<std::string> metric_name;  // of a metric, or NeMo-RL's "val:accuracy"
  bool higher_is_better = true;
  int64_t keep_top_k = 0;

  void visit(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
};

// What a run needs to know besides tensors to go on as if it had not stopped.
struct RunState {
  std::string algorithm = "grpo";
  int64_t step = 0;  // completed
  int64_t next_draw_index =
      0;  // prompts drawn so far; data position, epoch and sampling keys follow from it
  int64_t optimizer_steps = 0;  // and with it the schedule's
  int64_t seed = 0;
  // Supervised steps done of a warm start that a signal interrupted: the checkpoint, of step 0,
  // holds its optimizer and no reference yet. Otherwise it is over, or there is none.
  std::optional<int64_t> num_warm_start_steps;
  // Elements that the refit at saving time changed: they belong to the next step's
  // refit/changed_elements.
  int64_t pending_changed_elements = 0;
  std::string gates_json = "[]";       // of GateKeeper
  std::string early_stop_json = "{}";  // of EarlyStop
  std::string ranking_json = "{}";     // of CheckpointRanking

  bool is_in_warm_start() const { return num_warm_start_steps.has_value(); }

  std::string to_json() const;
  // Throws DataError that starts with `where`.
  static RunState from_json(const std::string& text, const std::string& where);
};

// Of a checkpoint. Throws DataError.
RunState read_run_state(const std::filesystem::path& folder);

// checkpoint_dir, or <log_dir>/checkpoints when that is empty.
std::filesystem::path checkpoint_parent(const CheckpointingConfig& config,
                                        const std::string& log_dir);

// What --resume names: "auto" is the newest finished checkpoint of `parent`, if there is one;
// otherwise a checkpoint's folder, or a folder of checkpoints. Throws ConfigError when a named
// folder holds none.
std::optional<std::filesystem::path> find_checkpoint(const std::string& resume,
                                                     const std::filesystem::path& parent);

// A checkpoint's folder itself, or the newest finished one in a folder of them.
std::optional<std::filesystem::path> checkpoint_at(const std::filesystem::path& path);

// What is wrong with a checkpoint ("path: found, expected"), or nullopt: manifest, its agreement
// with the run's state and the folder's name, every file's size and checksum. Ranks can share the
// files as find_damage() says.
std::optional<std::string> find_checkpoint_damage(const std::filesystem::path& folder, int part = 0,
                                                  int num_parts = 1);

// Renames checkpoints of `parent` beyond `last_step`, which an earlier run made and this one will
// make anew, to step_N.replaced, and removes what unfinished saves left. One line for each renamed
// one.
std::vector<std::string> set_aside_checkpoints(const std::filesystem::path& parent,
                                               int64_t last_step);
// Removes those that were set aside of steps up to `newest_step`, of which this run has a
// checkpoint. Throws DataError.
void remove_replaced_checkpoints(const std::filesystem::path& parent, int64_t newest_step);

}  // namespace grpo::rl
