#include <vector>

#include "app/config/config_writer.h"
#include "app/config/unused_keys.h"
#include "app/config/yaml_config_reader.h"
#include "app/config/yaml_parser.h"
#include "model/core/errors.h"
#include "rl/config/resolve_config.h"
#include "tests/fuzz/fuzz_targets.h"

namespace grpo::fuzz {

namespace {

const app::ConfigKey& catalog() {
  static const app::ConfigKey all = [] {
    rl::RunConfig defaults;
    return app::make_config_catalog([&](ConfigVisitor& visitor) { defaults.visit(visitor); });
  }();
  return all;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

rl::RunConfig read(const std::string& text, const std::vector<std::string>& overrides) {
  rl::RunConfig config;
  const app::ConfigNode root =
      app::read_config(app::parse_yaml_text(text, "fuzz.yaml"), overrides, catalog(),
                       [&](ConfigVisitor& visitor) { visit_fields(visitor, config); });
  app::refuse_unused_keys(config, root);
  app::config_origins(root);
  return config;
}

}  // namespace

void fuzz_yaml_config(std::string_view bytes) {
  const auto [file, words] = two_texts(bytes);
  rl::RunConfig config;
  try {
    config = read(std::string(file), lines_of(words));
  } catch (const ConfigError&) {
    return;
  }
  // What the program writes it reads back to the same.
  const std::string written = app::config_to_yaml(config);
  CHECK(app::config_to_yaml(read(written, {})) == written,
        "a written config reads back as another");
  try {
    rl::resolve(config, 4);
    rl::batch_arithmetic(config, 4);
  } catch (const ConfigError&) {
  }
}

}  // namespace grpo::fuzz
