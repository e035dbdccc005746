// Files that a user names: looked at before they are opened, so that a pipe cannot hang a rank and
// a device cannot be read for ever. Thread-safe (no state).
#pragma once

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace grpo::model {

// Something has this name, be it a link that leads nowhere: opening it then says what is wrong with
// it. Never throws, unlike std::filesystem::exists.
bool is_present(const std::filesystem::path& path) noexcept;
bool is_folder(const std::filesystem::path& path) noexcept;

// Why the file cannot be an input: "is a pipe", "No such file or directory"; nullopt for a regular
// file.
std::optional<std::string> input_problem(const std::filesystem::path& path);

// Open for reading bytes. Throws DataError (path, reason, what is allowed).
std::ifstream open_input(const std::filesystem::path& path);

}  // namespace grpo::model
