// The keys a config struct has, learnt from its visit(): for misspelt keys, overrides and the
// reference.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/core/config_visitor.h"

namespace grpo::app {

struct ConfigKey {
  enum class Kind {
    kBool,
    kInteger,
    kNumber,
    kText,
    kNumberOrNull,
    kTextOrNull,
    kIntegers,
    kNumbers,
    kChoice,
    kSection,
    kSections  // a list of mappings
  };

  std::string name;
  std::string path;  // "policy.generation.top_p"; "gates.[].max" inside a list
  Kind kind = Kind::kSection;
  std::string default_value;         // as YAML; empty for sections
  std::vector<std::string> choices;  // kChoice
  std::string reason;
  std::vector<ConfigKey> keys;  // of a section, or of an element of a list of them

  // The key of this name in the section; null when there is none.
  const ConfigKey* find(const std::string& wanted) const;
  // "an integer", "one of exact, fast": what an error message and the reference print.
  std::string allowed() const;
  // The closest key to a misspelt one: of this section when similar, else one of that name
  // elsewhere in `root`.
  std::string nearest_path(const std::string& misspelt, const ConfigKey& root) const;
};

// `visit` runs over a default-constructed config, which it may change.
ConfigKey make_config_catalog(const std::function<void(ConfigVisitor&)>& visit);

}  // namespace grpo::app
