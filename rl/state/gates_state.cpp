#include <nlohmann/json.hpp>

#include "model/core/errors.h"
#include "rl/state/gates.h"

namespace grpo::rl {

namespace {

// Shortest text that reads back to the same double, also where JSON has no number for it.
std::string number_text(double value) { return fmt::format("{}", value); }
double number_value(const nlohmann::json& text) { return std::stod(text.get<std::string>()); }

}  // namespace

std::string GateKeeper::state_json() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (size_t i = 0; i < gates_.size(); ++i) {
    const GateSummary& summary = summaries_[i];
    nlohmann::ordered_json history = nlohmann::ordered_json::array();
    for (const auto& [step, value] : history_[i]) history.push_back({step, number_text(value)});
    list.push_back({{"label", summary.label},
                    {"action", summary.action},
                    {"num_trips", summary.num_trips},
                    {"worst", number_text(summary.worst)},
                    {"worst_step", summary.worst_step},
                    {"num_checked", summary.num_checked},
                    {"history", std::move(history)}});
  }
  return list.dump();
}

void GateKeeper::restore(const std::string& state_json) {
  try {
    for (const nlohmann::json& saved : nlohmann::json::parse(state_json)) {
      for (size_t i = 0; i < gates_.size(); ++i) {
        GateSummary& summary = summaries_[i];
        if (saved.at("label") != summary.label || saved.at("action") != summary.action) continue;
        summary.num_trips = saved.at("num_trips").get<int64_t>();
        summary.worst = number_value(saved.at("worst"));
        summary.worst_step = saved.at("worst_step").get<int64_t>();
        summary.num_checked = saved.at("num_checked").get<int64_t>();
        history_[i].clear();
        for (const nlohmann::json& entry : saved.at("history")) {
          history_[i].emplace_back(entry.at(0).get<int64_t>(), number_value(entry.at(1)));
        }
        failed_ = failed_ || (summary.num_trips > 0 && summary.action != "warn");
      }
    }
  } catch (const std::exception& error) {
    throw DataError(fmt::format("the checkpoint's gate state cannot be read: {}", error.what()));
  }
}

}  // namespace grpo::rl
