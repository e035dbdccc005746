#include "app/config/config_reference.h"

#include <fmt/format.h>

#include "app/config/config_catalog.h"
#include "rl/config/run_config.h"

namespace grpo::app {

namespace {

// A bar would end the table cell.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

void append_rows(const ConfigKey& section, std::string& out) {
  for (const ConfigKey& key : section.keys) {
    const bool is_section = key.kind == ConfigKey::Kind::kSection;
    const std::string shown = key.default_value.empty() ? "" : "`" + cell(key.default_value) + "`";
    out += fmt::format("| {} | {} | {} | {} |\n", fmt::format("`{}`", key.path), shown,
                       is_section ? "" : cell(key.allowed()), cell(key.reason));
    append_rows(key, out);
  }
}

}  // namespace

std::string config_reference() {
  rl::RunConfig config;
  const ConfigKey root =
      make_config_catalog([&](ConfigVisitor& visitor) { config.visit(visitor); });
  std::string out = "| key | default | allowed | what it does |\n|---|---|---|---|\n";
  append_rows(root, out);
  return out;
}

}  // namespace grpo::app
