#include "rl/state/checkpoint_ranking.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "model/core/errors.h"
#include "parallel/checkpoint/checkpoint.h"

namespace grpo::rl {

void CheckpointRanking::add(int64_t step, std::optional<double> value) {
  std::erase_if(values_, [&](const auto& known) { return known.first >= step; });
  if (value && std::isfinite(*value)) values_.emplace_back(step, *value);
}

std::vector<std::pair<int64_t, double>> CheckpointRanking::best_first() const {
  std::vector<std::pair<int64_t, double>> sorted(values_.rbegin(), values_.rend());
  std::stable_sort(sorted.begin(), sorted.end(), [&](const auto& a, const auto& b) {
    return config_.higher_is_better ? a.second > b.second : a.second < b.second;
  });
  return sorted;
}

std::vector<int64_t> CheckpointRanking::superfluous(const std::vector<int64_t>& steps) const {
  if (config_.keep_last == 0 && config_.keep_top_k == 0) return {};
  const auto num_newest = static_cast<size_t>(std::max<int64_t>(1, config_.keep_last));
  std::set<int64_t> kept(steps.end() - static_cast<int64_t>(std::min(num_newest, steps.size())),
                         steps.end());
  int64_t num_best = 0;
  for (const auto& [step, value] : best_first()) {
    if (num_best == config_.keep_top_k) break;
    if (!std::binary_search(steps.begin(), steps.end(), step)) continue;
    kept.insert(step);
    ++num_best;
  }
  std::vector<int64_t> rest;
  for (const int64_t step : steps) {
    if (!kept.contains(step)) rest.push_back(step);
  }
  return rest;
}

// Values are text: the shortest that reads back to the same double.
std::string CheckpointRanking::state_json() const {
  nlohmann::ordered_json values = nlohmann::ordered_json::array();
  for (const auto& [step, value] : values_) values.push_back({step, fmt::format("{}", value)});
  return nlohmann::ordered_json{{"metric", config_.metric_name.value_or("")}, {"values", values}}
      .dump();
}

void CheckpointRanking::restore(const std::string& state_json) {
  try {
    const auto saved = nlohmann::json::parse(state_json);
    if (saved.empty()) return;
    if (saved.at("metric") != config_.metric_name.value_or("")) return;
    values_.clear();
    for (const auto& entry : saved.at("values")) {
      values_.emplace_back(entry.at(0).get<int64_t>(), std::stod(entry.at(1).get<std::string>()));
    }
  } catch (const std::exception& error) {
    throw DataError(fmt::format("the checkpoint's ranking cannot be read: {}", error.what()));
  }
}

void remove_superfluous_checkpoints(const std::filesystem::path& parent,
                                    const CheckpointRanking& ranking, int64_t newest_step) {
  std::vector<int64_t> steps;
  for (const std::filesystem::path& folder : parallel::finished_checkpoints(parent)) {
    const int64_t step = *parallel::step_of_folder(folder);
    if (step <= newest_step) steps.push_back(step);
  }
  for (const int64_t step : ranking.superfluous(steps)) {
    parallel::remove_checkpoint(parent / fmt::format("step_{}", step));
  }
}

}  // namespace grpo::rl
