#include "app/launch/launcher_pid_file.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "model/core/errors.h"

namespace grpo::app {

namespace {

constexpr const char* kMarkFile = "launcher";

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Clock ticks from boot to the process's start, which tell it from a later one of the same pid;
// nullopt when there is no such process.
std::optional<std::string> start_time(const std::string& pid) {
  const std::string status = text_of("/proc/" + pid + "/stat");
  const size_t name_end = status.rfind(')');  // the name may hold blanks and parentheses
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(status.substr(name_end + 1));
  const std::vector<std::string> all{std::istream_iterator<std::string>(fields), {}};
  constexpr size_t kState = 0;
  constexpr size_t kStart = 19;  // both count from the name
  if (all.size() <= kStart || all[kState] == "Z") return std::nullopt;
  return all[kStart];
}

// Where pids mean the same as here; "" when the system does not tell.
std::string this_system() {
  char host[256] = "";
  ::gethostname(host, sizeof(host) - 1);
  std::istringstream boot(text_of("/proc/sys/kernel/random/boot_id"));
  std::string boot_id;
  std::error_code error;
  const auto pids = std::filesystem::read_symlink("/proc/self/ns/pid", error);
  if (!(boot >> boot_id) || error) return "";
  return fmt::format("{} {} {}", host, boot_id, pids.string());
}

bool is_abandoned(const std::filesystem::path& folder, const std::string& system) {
  std::istringstream mark(text_of(folder / kMarkFile));
  std::string where;
  std::string pid;
  std::string start;
  if (!std::getline(mark, where) || !(mark >> pid >> start) || where != system) return false;
  return start_time(pid) != start;
}

}  // namespace

void mark_launcher(const std::filesystem::path& folder) {
  const std::string system = this_system();
  const std::string pid = std::to_string(::getpid());
  const auto start = start_time(pid);
  if (system.empty() || !start) return;
  std::ofstream(folder / kMarkFile) << fmt::format("{}\n{} {}\n", system, pid, *start);
}

void remove_abandoned_folders(const std::filesystem::path& parent) noexcept {
  try {
    const std::string system = this_system();
    if (system.empty()) return;
    std::error_code error;
    std::vector<std::filesystem::path> abandoned;
    for (const auto& entry : std::filesystem::directory_iterator(parent, error)) {
      if (is_abandoned(entry.path(), system)) abandoned.push_back(entry.path());
    }
    for (const auto& folder : abandoned) std::filesystem::remove_all(folder, error);
  } catch (const std::exception&) {
    // What stays is small, and the next start tries again.
  }
}

}  // namespace grpo::app
