// Reads golden JSON files, which Python wrote: NaN and Infinity may stand where JSON has no literal
// for them.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace grpo::golden {

// Throws DataError naming the file for one that cannot be read or parsed.
nlohmann::json read_golden_json(const std::filesystem::path& path);

// JSON text with NaN, Infinity and -Infinity as numbers. Throws nlohmann's parse_error.
nlohmann::json parse_golden_json(const std::string& text);

}  // namespace grpo::golden
