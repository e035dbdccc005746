// Strict JSON for files that strangers wrote: duplicate keys, deep nesting and ill-formed UTF-8 are
// errors. Thread-safe (no state).
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace grpo::model {

// Containers inside containers beyond this are refused: no format read here needs more.
inline constexpr int kMaxJsonDepth = 32;

// Throws DataError that starts with `where`.
nlohmann::json parse_json(std::string_view text, const std::string& where);

enum class JsonEvent { kObjectStart, kObjectEnd, kArrayStart, kArrayEnd, kKey, kValue };
// Sees every event before it is stored, `parsed` being a key or a value; false leaves the key or
// value out of the result. `depth` counts the containers around the event.
using JsonObserver = std::function<bool(int depth, JsonEvent event, const nlohmann::json& parsed)>;
nlohmann::json parse_json(std::string_view text, const std::string& where,
                          const JsonObserver& observer);

// The bytes of a regular file. Throws DataError: path, and the system's reason or the size and the
// limit.
std::string read_whole_file(const std::filesystem::path& path, size_t max_bytes);

// Both together, for files of at most 64 MB.
nlohmann::json read_json_file(const std::filesystem::path& path);

// The text as a JSON string with its quotes; what is not UTF-8 becomes U+FFFD.
std::string json_string(std::string_view text);

// A name or value from a file as messages show it: quoted, escaped onto one line, cut to about 80
// bytes.
std::string shown_text(std::string_view text);
std::string shown(const nlohmann::json& value);

// What a JSON library exception says, on one line and without its own prefix.
std::string json_problem(const std::string& what);

}  // namespace grpo::model
