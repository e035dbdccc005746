#include "app/commands/export_command.h"

// grpo_train export: the policy's weights of a checkpoint as a Hugging Face directory.
#include <filesystem>

#include "model/files/input_file.h"
#include "model/transformer_parameters.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/weights_io.h"
#include "rl/state/checkpoint_model.h"
#include "rl/state/checkpointing.h"

namespace grpo::app {

namespace {

parallel::AxisGroup solo(const char* name) {
  return parallel::AxisGroup::of(parallel::make_solo_communicator(name));
}

// The folder of one checkpoint: `path` itself, or the newest in it.
std::filesystem::path checkpoint_folder(const std::string& path) {
  try {
    return *rl::find_checkpoint(path, path);
  } catch (const ConfigError&) {
    throw DataError(
        fmt::format("--checkpoint {}: no finished checkpoint there; allowed: a folder step_N with "
                    "manifest.json, or a "
                    "folder of such folders",
                    path));
  }
}

void make_output_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw DataError(fmt::format("--output {}: {}", folder.string(), error.message()));
  for (const char* name : {"config.json", "model.safetensors"}) {
    if (model::is_present(folder / name)) {
      throw ConfigError(
          fmt::format("--output {} holds {} already; allowed: a folder without a model",
                      folder.string(), name));
    }
  }
}

}  // namespace

int run_export(const ExportOptions& options) {
  const std::filesystem::path folder = checkpoint_folder(options.checkpoint);
  if (const auto damage = rl::find_checkpoint_damage(folder)) {
    throw DataError(fmt::format("--checkpoint {}: damaged: {}", options.checkpoint, *damage));
  }
  const model::ModelConfig config = model::read_model_config(folder);
  make_output_folder(options.output_dir);
  Allocator allocator(Device::cpu());
  parallel::ShardedParameterStore store("export",
                                        model::make_transformer_parameters(config, 0.0f).specs,
                                        {.tp = parallel::AxisGroup::off(),
                                         .gtp_remat = parallel::AxisGroup::off(),
                                         .dp = parallel::AxisGroup::off(),
                                         .data = solo("data"),
                                         .world = solo("world"),
                                         .gtp_alignment = 1},
                                        config.dtype, parallel::Gradients::kNone, allocator);
  parallel::CheckpointContent content;
  parallel::add_weights(content, "weights", store);
  parallel::sort_content(content);
  parallel::load_checkpoint(folder, content, parallel::Surplus::kIgnore);
  parallel::save_weights(store, options.output_dir, config.dtype);
  rl::write_model_files(options.output_dir, config, folder);
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace grpo::app
