#include "rl/state/resume_point.h"

#include <algorithm>

#include "model/core/errors.h"
#include "parallel/checkpoint/checkpoint_folder.h"
#include "parallel/comm/host_collectives.h"
#include "rl/state/checkpointing.h"

namespace grpo::rl {

namespace {

// World rank 0's text on every rank.
std::string broadcast_text(const std::string& text, Communicator& world) {
  const std::string own = world.rank() == 0 ? text : std::string();
  const auto all = parallel::all_gather_bytes(world, std::as_bytes(std::span(own)));
  return {reinterpret_cast<const char*>(all[0].data()), all[0].size()};
}

// The first rank's damage, on every rank; "" when no rank found any.
std::string verify(const std::filesystem::path& folder, Communicator& world) {
  const std::string own = find_checkpoint_damage(folder, world.rank(), world.size()).value_or("");
  for (const auto& bytes : parallel::all_gather_bytes(world, std::as_bytes(std::span(own)))) {
    if (!bytes.empty()) return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  return "";
}

constexpr std::string_view kReplaced = ".replaced";

std::filesystem::path free_name(const std::filesystem::path& folder) {
  std::string name = folder.string() + std::string(kReplaced);
  for (int number = 2; std::filesystem::exists(name); ++number) {
    name = fmt::format("{}{}-{}", folder.string(), kReplaced, number);
  }
  return name;
}

// N of a folder step_N.replaced or step_N.replaced-2.
std::optional<int64_t> step_of_replaced(const std::filesystem::path& folder) {
  const std::string name = folder.filename().string();
  const size_t end = name.find(kReplaced);
  if (end == std::string::npos) return std::nullopt;
  const std::string number = name.substr(end + kReplaced.size());
  const bool is_ours =
      number.empty() || (number.size() > 1 && number[0] == '-' &&
                         number.find_first_not_of("0123456789", 1) == std::string::npos);
  return is_ours ? parallel::step_of_folder(name.substr(0, end)) : std::nullopt;
}

}  // namespace

std::optional<std::string> find_checkpoint_damage(const std::filesystem::path& folder, int part,
                                                  int num_parts) {
  try {
    const parallel::CheckpointManifest manifest = parallel::read_manifest(folder);
    const std::string where = (folder / "manifest.json").string();
    const RunState state = RunState::from_json(manifest.state_json, where);
    if (state.step != manifest.step) {
      return fmt::format("{}: \"step\" is {}, in \"state\" {}", where, manifest.step, state.step);
    }
    const int64_t step = parallel::step_of_folder(folder).value_or(manifest.step);
    if (step != manifest.step)
      return fmt::format("{}: \"step\" is {}, the folder's is {}", where, manifest.step, step);
    return parallel::find_damage(folder, manifest, part, num_parts);
  } catch (const DataError& error) {
    return error.what();
  }
}

ResumePoint find_resume_point(const std::string& resume, const std::filesystem::path& parent,
                              Communicator& world) {
  const bool is_auto = resume == "auto";
  std::string text;
  if (world.rank() == 0) {
    auto candidates = is_auto ? parallel::finished_checkpoints(parent)
                              : std::vector{*find_checkpoint(resume, parent)};
    std::reverse(candidates.begin(), candidates.end());
    for (const auto& path : candidates) text += path.string() + "\n";
  }
  text = broadcast_text(text, world);
  ResumePoint point;
  std::string damage;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const std::filesystem::path folder = text.substr(begin, end - begin);
    begin = end + 1;
    damage = verify(folder, world);
    if (damage.empty()) {
      point.checkpoint = folder;
      point.step = parallel::read_manifest(folder).step;
      return point;
    }
    if (!is_auto)
      throw DataError(fmt::format("--resume {}: the checkpoint is damaged: {}", resume, damage));
    point.warnings.push_back(
        fmt::format("the checkpoint {} is DAMAGED and passed over: {}", folder.string(), damage));
  }
  if (!damage.empty()) {
    throw DataError(fmt::format(
        "--resume auto: every checkpoint in {} is damaged, the oldest: {}; allowed: remove "
        "them to start fresh",
        parent.string(), damage));
  }
  return point;
}

std::vector<std::string> set_aside_checkpoints(const std::filesystem::path& parent,
                                               int64_t last_step) {
  parallel::remove_unfinished_checkpoints(parent);
  std::vector<std::string> lines;
  for (const auto& folder : parallel::finished_checkpoints(parent)) {
    if (*parallel::step_of_folder(folder) <= last_step) continue;
    const std::filesystem::path aside = free_name(folder);
    std::error_code error;
    std::filesystem::rename(folder, aside, error);
    if (error)
      throw DataError(fmt::format("{}: cannot be renamed: {}", folder.string(), error.message()));
    lines.push_back(fmt::format("the earlier checkpoint {} is now {}", folder.string(),
                                aside.filename().string()));
  }
  return lines;
}

void remove_replaced_checkpoints(const std::filesystem::path& parent, int64_t newest_step) {
  std::error_code error;
  std::vector<std::filesystem::path> replaced;
  for (const auto& entry : std::filesystem::directory_iterator(parent, error)) {
    const auto step = step_of_replaced(entry.path());
    if (step && *step <= newest_step) replaced.push_back(entry.path());
  }
  for (const std::filesystem::path& folder : replaced) {
    std::filesystem::remove_all(folder, error);
    if (error)
      throw DataError(fmt::format("{}: cannot be removed: {}", folder.string(), error.message()));
  }
}

}  // namespace grpo::rl
