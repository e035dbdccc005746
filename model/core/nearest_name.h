// The closest of a list of names, for error messages about misspelt keys and metrics.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace grpo {

// Edits (insert, delete, replace one byte, swap two neighbours) that turn `a` into `b`: the
// restricted Damerau-Levenshtein distance.
size_t edit_distance(std::string_view a, std::string_view b);

// The name at the smallest edit distance, the first in the list among equals; "" for an empty list.
std::string nearest_name(std::string_view name, const std::vector<std::string>& names);

}  // namespace grpo
