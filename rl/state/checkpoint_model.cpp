#include "rl/state/checkpoint_model.h"

#include "model/core/errors.h"
#include "model/files/atomic_file.h"
#include "model/files/checksum.h"
#include "model/files/json_text.h"
#include "model/tokenizer/tokenizer.h"

namespace grpo::rl {

namespace {

constexpr size_t kMaxTokenizerBytes = size_t{1} << 30;

}  // namespace

void write_model_files(const std::filesystem::path& folder, const model::ModelConfig& model,
                       const std::filesystem::path& tokenizer) {
  model::write_model_config(model, folder);
  for (const model::TokenizerFile& file : model::tokenizer_files(tokenizer)) {
    model::write_file_atomically(folder / file.name,
                                 model::read_whole_file(file.path, kMaxTokenizerBytes));
  }
}

void check_model_files(const std::filesystem::path& folder, const model::ModelConfig& model,
                       const std::filesystem::path& tokenizer) {
  const std::string checkpoint = "the checkpoint " + folder.string();
  if (const auto difference = model::find_difference(model::read_model_config(folder), model)) {
    throw DataError(fmt::format("{} is of another model: {} is {} there, {} in this run",
                                checkpoint, difference->key, difference->first,
                                difference->second));
  }
  for (const model::TokenizerFile& file : model::tokenizer_files(tokenizer)) {
    const uint64_t saved = model::checksum_of_file(folder / file.name).value();
    const uint64_t own = model::checksum_of_file(file.path).value();
    if (saved == own) continue;
    throw DataError(fmt::format(
        "{} has another tokenizer: {} has checksum {}, this run's {} has {}", checkpoint, file.name,
        model::checksum_text(saved), file.path.string(), model::checksum_text(own)));
  }
}

}  // namespace grpo::rl
