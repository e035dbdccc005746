#include "model/files/json_text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "model/core/errors.h"
#include "model/core/file_descriptor.h"
#include "model/files/input_file.h"

namespace grpo::model {
namespace {

constexpr size_t kMaxShownBytes = 80;
constexpr size_t kMaxJsonFileBytes = size_t{64} << 20;

std::string dump_line(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

JsonEvent event_of(nlohmann::json::parse_event_t event) {
  switch (event) {
    case nlohmann::json::parse_event_t::object_start:
      return JsonEvent::kObjectStart;
    case nlohmann::json::parse_event_t::object_end:
      return JsonEvent::kObjectEnd;
    case nlohmann::json::parse_event_t::array_start:
      return JsonEvent::kArrayStart;
    case nlohmann::json::parse_event_t::array_end:
      return JsonEvent::kArrayEnd;
    case nlohmann::json::parse_event_t::key:
      return JsonEvent::kKey;
    case nlohmann::json::parse_event_t::value:
      break;
  }
  return JsonEvent::kValue;
}

}  // namespace

std::string json_string(std::string_view text) { return dump_line(nlohmann::json(text)); }

std::string shown_text(std::string_view text) {
  if (text.size() <= kMaxShownBytes) return json_string(text);
  return json_string(text.substr(0, kMaxShownBytes)) + "...";
}

std::string shown(const nlohmann::json& value) {
  if (value.is_string()) return shown_text(value.get_ref<const std::string&>());
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  return dump_line(value);
}

std::string json_problem(const std::string& what) {
  const size_t prefix_end = what.find("] ");
  std::string text = prefix_end == std::string::npos ? what : what.substr(prefix_end + 2);
  if (text.size() > 200) text = text.substr(0, 200) + "...";
  // Through a JSON string and back without its quotes: control characters and broken UTF-8
  // disappear.
  text = json_string(text);
  return text.substr(1, text.size() - 2);
}

nlohmann::json parse_json(std::string_view text, const std::string& where) {
  return parse_json(text, where, [](int, JsonEvent, const nlohmann::json&) { return true; });
}

nlohmann::json parse_json(std::string_view text, const std::string& where,
                          const JsonObserver& observer) {
  using nlohmann::json;
  std::vector<std::unordered_set<std::string>> open_objects;
  const auto on_event = [&](int depth, json::parse_event_t parse_event, json& parsed) {
    if (depth > kMaxJsonDepth) {
      throw DataError(fmt::format("{}: JSON nested deeper than {} levels", where, kMaxJsonDepth));
    }
    const JsonEvent event = event_of(parse_event);
    if (event == JsonEvent::kObjectStart) {
      open_objects.emplace_back();
    } else if (event == JsonEvent::kObjectEnd) {
      open_objects.pop_back();
    } else if (event == JsonEvent::kKey) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) {
        throw DataError(fmt::format("{}: duplicate key {}", where, shown_text(key)));
      }
    }
    return observer(depth, event, parsed);
  };
  try {
    return json::parse(text.begin(), text.end(), on_event);
  } catch (const json::exception& error) {
    throw DataError(fmt::format("{}: not valid JSON: {}", where, json_problem(error.what())));
  }
}

std::string read_whole_file(const std::filesystem::path& path, size_t max_bytes) {
  const std::string name = path.string();
  if (const auto problem = input_problem(path)) {
    throw DataError(fmt::format("{}: {}", name, *problem));
  }
  // O_NONBLOCK: a file that becomes a pipe now must not hang; regular files ignore it.
  const FileDescriptor file = FileDescriptor::open(path, O_RDONLY | O_NONBLOCK);
  if (!file.is_open()) throw DataError(fmt::format("{}: {}", name, std::strerror(errno)));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    throw DataError(fmt::format("{}: not a regular file", name));
  }
  if (static_cast<uint64_t>(status.st_size) > max_bytes) {
    throw DataError(
        fmt::format("{}: {} bytes, at most {} are allowed", name, status.st_size, max_bytes));
  }
  std::string text(static_cast<size_t>(status.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::read(file.get(), text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw DataError(fmt::format("{}: {}", name, std::strerror(errno)));
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  text.resize(done);
  return text;
}

nlohmann::json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_whole_file(path, kMaxJsonFileBytes), path.string());
}

}  // namespace grpo::model
