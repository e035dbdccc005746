#include "app/key_places.h"

namespace grpo::app {

namespace {

void collect(const ConfigNode& node, const std::string& path, KeyPlaces& places) {
  const std::string start = path.empty() ? "" : path + ".";
  for (const ConfigEntry& entry : node.entries) {
    places[start + entry.key] = entry.origin;
    collect(entry.value, start + entry.key, places);
  }
  for (size_t i = 0; i < node.items.size(); ++i) {
    collect(node.items[i], fmt::format("{}{}", start, i), places);
  }
}

}  // namespace

KeyPlaces places_of(const ConfigNode& root) {
  KeyPlaces places;
  collect(root, "", places);
  return places;
}

}  // namespace grpo::app
