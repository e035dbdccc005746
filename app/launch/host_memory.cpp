#include "app/launch/host_memory.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>

#include "model/core/device_cuda.h"
#include "model/core/errors.h"
#include "rl/run/memory_report.h"

namespace grpo::app {

namespace {

// A whole number at the start of a one-line file; "max" and anything else is nothing.
std::optional<size_t> read_number(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text)) return std::nullopt;
  size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<size_t> system_available(const std::filesystem::path& root) {
  std::ifstream file(root / "proc/meminfo");
  std::string key;
  size_t kilobytes = 0;
  std::string unit;
  while (file >> key >> kilobytes) {
    if (key == "MemAvailable:") return kilobytes * 1024;
    std::getline(file, unit);
  }
  return std::nullopt;
}

// What one control group leaves: its limit less what it holds that cannot be dropped.
std::optional<size_t> left_in(const std::filesystem::path& limit_file,
                              const std::filesystem::path& used_file) {
  const std::optional<size_t> limit = read_number(limit_file);
  if (!limit) return std::nullopt;
  const size_t used = read_number(used_file).value_or(0);
  return *limit > used ? *limit - used : 0;
}

void lower(std::optional<size_t>& least, const std::optional<size_t>& other) {
  if (other && (!least || *other < *least)) least = other;
}

// Limits hold from the process's own group up to the root. Lines of /proc/self/cgroup: "0::/path"
// (version 2), "4:memory:/path" (version 1).
void lower_by_control_groups(std::optional<size_t>& least, const std::filesystem::path& root) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t controllers = line.find(':') + 1;
    const size_t colon = line.find(':', controllers);
    if (controllers == 0 || colon == std::string::npos) continue;
    const std::string names = line.substr(controllers, colon - controllers);
    const bool is_unified = names.empty();
    if (!is_unified && names != "memory") continue;
    const std::filesystem::path mount =
        root / (is_unified ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    const char* limit = is_unified ? "memory.max" : "memory.limit_in_bytes";
    const char* used = is_unified ? "memory.current" : "memory.usage_in_bytes";
    // In a container the own group is often mounted as the root, so that the path is not there.
    std::filesystem::path relative = std::filesystem::path(line.substr(colon + 1)).relative_path();
    for (;; relative = relative.parent_path()) {
      lower(least, left_in(mount / relative / limit, mount / relative / used));
      if (relative.empty()) break;
    }
  }
}

}  // namespace

std::optional<size_t> available_memory_bytes(const std::filesystem::path& root) {
  std::optional<size_t> least = system_available(root);
  lower_by_control_groups(least, root);
  return least;
}

int num_ranks_here(int world_size, const VariableLookup& lookup) {
  for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"}) {
    const std::optional<std::string> text = lookup(name);
    if (!text) continue;
    const int count = std::atoi(text->c_str());
    if (count >= 1 && count <= world_size) return count;
  }
  // "4(x2),3": tasks on each of the step's nodes, the first node's first.
  if (const std::optional<std::string> text = lookup("SLURM_STEP_TASKS_PER_NODE")) {
    const int count = std::atoi(text->c_str());
    if (count >= 1 && count <= world_size) return count;
  }
  return world_size;
}

int num_ranks_here(int world_size) {
  return num_ranks_here(world_size, [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

std::string memory_warning(const rl::MemoryPlan& plan) {
  if (plan.device.kind == DeviceKind::kCuda) {
    if (plan.device.index >= cuda_device_count()) return "";
    return memory_warning(plan, 1, cuda_free_bytes(plan.device));
  }
  const std::optional<size_t> available = available_memory_bytes();
  if (!available) return "";
  return memory_warning(plan, num_ranks_here(static_cast<int>(plan.ranks.size())), *available);
}

std::string memory_warning(const rl::MemoryPlan& plan, int num_ranks, size_t available) {
  const size_t per_rank = plan.ranks[static_cast<size_t>(plan.fullest_rank())].peak_bytes();
  const size_t wanted = per_rank * static_cast<size_t>(num_ranks);
  if (wanted <= available) return "";
  const size_t fitting = available / per_rank;
  return fmt::format(
      "NOT ENOUGH MEMORY: the plan needs {} ({} rank{} here x {}), {} are available. Most of it is "
      "{}. {}, or a rank "
      "may use {}: lower policy.sequence_packing.train_mb_tokens, logprob_mb_tokens and "
      "logprob_chunk_tokens or "
      "policy.generation.max_batch_size, raise parallel.gtp_remat over more machines, or take "
      "precision bfloat16",
      rl::bytes_text(wanted), num_ranks, num_ranks == 1 ? "" : "s", rl::bytes_text(per_rank),
      rl::bytes_text(available), rl::biggest_owner(plan),
      fitting == 0 ? std::string("Not even one such rank fits")
                   : fmt::format("{} such rank{} fit{}", fitting, fitting == 1 ? "" : "s",
                                 fitting == 1 ? "s" : ""),
      rl::bytes_text(available / static_cast<size_t>(num_ranks)));
}

}  // namespace grpo::app
