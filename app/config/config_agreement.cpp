#include "app/config/config_agreement.h"

#include <algorithm>
#include <span>
#include <sstream>
#include <vector>

#include "model/core/errors.h"
#include "parallel/comm/host_collectives.h"

namespace grpo::app {

namespace {

struct Line {
  size_t indent = 0;
  std::string key;
  std::string value;
};

Line parse(const std::string& text) {
  Line line;
  line.indent = std::min(text.find_first_not_of(" -"), text.size());
  const size_t colon = text.find(": ", line.indent);
  const size_t end = colon != std::string::npos ? colon
                     : text.ends_with(':')      ? text.size() - 1
                                                : line.indent;
  line.key = text.substr(line.indent, end - line.indent);
  line.value = text.substr(std::min(colon == std::string::npos ? end : colon + 2, text.size()));
  return line;
}

std::string path_of(const std::vector<Line>& above, const std::string& key) {
  std::string path;
  for (const Line& line : above) path += line.key + ".";
  return path + key;
}

}  // namespace

std::optional<ConfigDifference> find_difference(const std::string& first,
                                                const std::string& second) {
  std::istringstream firsts(first), seconds(second);
  std::vector<Line> above;  // the keys around the current line
  for (std::string a, b;;) {
    const bool has_a = static_cast<bool>(std::getline(firsts, a));
    const bool has_b = static_cast<bool>(std::getline(seconds, b));
    if (!has_a && !has_b) return std::nullopt;
    if (!has_a) a.clear();
    if (!has_b) b.clear();
    const Line line = parse(has_a ? a : b);
    while (!above.empty() && above.back().indent >= line.indent) above.pop_back();
    if (a != b) return ConfigDifference{path_of(above, line.key), parse(a).value, parse(b).value};
    above.push_back(line);
  }
}

void refuse_different_configs(const std::string& own_yaml, Communicator& everyone) {
  const auto texts = parallel::all_gather_bytes(everyone, std::as_bytes(std::span(own_yaml)));
  const auto text_of = [&](size_t rank) {
    return std::string(reinterpret_cast<const char*>(texts[rank].data()), texts[rank].size());
  };
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    const auto found = find_difference(text_of(0), text_of(rank));
    if (!found) continue;
    throw ConfigError(fmt::format(
        "{} is '{}' on rank 0 and '{}' on rank {}; allowed: the same config and key=value words on "
        "every rank",
        found->key, found->first, found->second, rank));
  }
}

}  // namespace grpo::app
