#include "rl/run/memory_report.h"

#include <algorithm>
#include <array>
#include <set>

#include "model/core/errors.h"

namespace grpo::rl {

namespace {

// Narrow headings.
std::string heading(const std::string& phase) {
  if (phase == "policy_and_reference_logprobs") return "logprobs";
  if (phase == "policy_training") return "training";
  return phase;
}

constexpr std::array kScratchOwners{std::pair{"  activations", ScratchOwner::kActivations},
                                    std::pair{"  logits", ScratchOwner::kLogits},
                                    std::pair{"  operators", ScratchOwner::kOperators}};

template <typename BytesOfPhase>
std::string row(const std::string& name, const std::vector<PhasePlan>& phases, BytesOfPhase bytes) {
  std::string line = fmt::format("\n{:<26}", name);
  for (const PhasePlan& plan : phases) {
    const size_t value = bytes(plan);
    line += fmt::format("{:>14}", value == 0 ? "-" : bytes_text(value));
  }
  return line;
}

size_t bytes_of(const OwnerBytes& owners, const std::string& owner) {
  const auto it = owners.find(owner);
  return it == owners.end() ? 0 : it->second;
}

}  // namespace

std::string bytes_text(size_t bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024.0 && unit + 1 < kUnits.size(); ++unit) value /= 1024.0;
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, kUnits[unit]);
}

std::string plan_table(const MemoryPlan& plan) {
  const int fullest = plan.fullest_rank();
  const std::vector<PhasePlan>& phases = plan.ranks[static_cast<size_t>(fullest)].phases;
  std::set<std::string> owners;
  for (const PhasePlan& phase : phases) {
    for (const auto& [owner, bytes] : phase.peak.by_owner) owners.insert(owner);
  }
  std::string table = fmt::format(
      "memory plan: the most on one rank, were all responses of full length; by owner on rank {}",
      fullest);
  table += fmt::format("\n{:<26}", "");
  for (const PhasePlan& phase : phases) table += fmt::format("{:>14}", heading(phase.phase));
  for (const std::string& owner : owners) {
    table += row(owner, phases,
                 [&](const PhasePlan& phase) { return bytes_of(phase.peak.by_owner, owner); });
    if (owner != "workspace") continue;
    for (const auto& [name, scratch] : kScratchOwners) {
      table += row(name, phases, [owner = scratch](const PhasePlan& phase) {
        return phase.peak.workspace[owner];
      });
    }
  }
  table += row("peak", phases, [](const PhasePlan& phase) { return phase.peak.bytes; });
  if (plan.ranks.size() == 1) return table;
  table += row("peak, fullest rank", phases, [&](const PhasePlan& phase) {
    const int rank = plan.fullest_rank(phase.phase);
    return plan.ranks[static_cast<size_t>(rank)].find(phase.phase)->peak.bytes;
  });
  table += fmt::format("\n{:<26}", "  which");
  for (const PhasePlan& phase : phases) {
    table += fmt::format("{:>14}", fmt::format("rank {}", plan.fullest_rank(phase.phase)));
  }
  return table;
}

std::string biggest_owner(const MemoryPlan& plan) {
  const RankMemoryPlan& rank = plan.ranks[static_cast<size_t>(plan.fullest_rank())];
  const PhasePlan* fullest = &rank.phases.front();
  for (const PhasePlan& phase : rank.phases) {
    if (phase.peak.bytes > fullest->peak.bytes) fullest = &phase;
  }
  const auto most =
      std::max_element(fullest->peak.by_owner.begin(), fullest->peak.by_owner.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return fmt::format("{} ({})", most->first, bytes_text(most->second));
}

std::string comparison_table(const MemoryPlan& plan, const MeasuredMemory& measured) {
  std::string table =
      fmt::format("memory, planned and measured\n{:<32}{:>12}{:>12}{:>9}{:>8}{:>14}{:>12}", "",
                  "planned", "measured", "of it", "rank", "of workspace", "used");
  const std::vector<PhasePlan>& phases = plan.ranks.front().phases;
  for (size_t i = 0; i < phases.size(); ++i) {
    size_t closest = 0;
    const auto share = [&](size_t rank) {
      return static_cast<double>(measured.ranks[rank][i].bytes) /
             static_cast<double>(plan.ranks[rank].phases[i].peak.bytes);
    };
    for (size_t rank = 1; rank < plan.ranks.size(); ++rank) {
      if (share(rank) > share(closest)) closest = rank;
    }
    const MeasuredPeak& peak = measured.ranks[closest][i];
    if (peak.bytes == 0) continue;
    const PhasePeak& planned = plan.ranks[closest].phases[i].peak;
    table += fmt::format("\n{:<32}{:>12}{:>12}{:>8.1f}%{:>8}{:>14}{:>12}", phases[i].phase,
                         bytes_text(planned.bytes), bytes_text(peak.bytes), 100.0 * share(closest),
                         closest, bytes_text(planned.workspace.total()),
                         bytes_text(peak.workspace_bytes));
  }
  return table;
}

}  // namespace grpo::rl
