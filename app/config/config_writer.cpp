#include "app/config/config_writer.h"

#include <fmt/format.h>

#include "app/text/scalar_text.h"

namespace grpo::app {

namespace {

template <typename Value>
std::string flow_list(const std::vector<Value>& values) {
  std::string text;
  for (const Value& value : values) {
    text += text.empty() ? "" : ", ";
    text += yaml_of(value);
  }
  return "[" + text + "]";
}

class YamlVisitor : public ConfigVisitor {
 public:
  // `lead` stands before the first line (the dash of a list item), `indent` before the others.
  YamlVisitor(std::string& out, std::string lead, std::string indent)
      : out_(out), lead_(std::move(lead)), indent_(std::move(indent)) {}

  void field(std::string_view key, bool& value, std::string_view) override {
    line(key, yaml_of(value));
  }
  void field(std::string_view key, int64_t& value, std::string_view) override {
    line(key, yaml_of(value));
  }
  void field(std::string_view key, double& value, std::string_view) override {
    line(key, yaml_of(value));
  }
  void field(std::string_view key, std::string& value, std::string_view) override {
    line(key, yaml_of(value));
  }
  void field(std::string_view key, std::optional<double>& value, std::string_view) override {
    line(key, yaml_of(value));
  }
  void field(std::string_view key, std::optional<std::string>& value, std::string_view) override {
    line(key, yaml_of(value));
  }
  void field(std::string_view key, std::vector<int64_t>& value, std::string_view) override {
    line(key, yaml_of(value));
  }
  void field(std::string_view key, std::vector<double>& value, std::string_view) override {
    line(key, yaml_of(value));
  }
  void choice(std::string_view key, std::string& value, const std::vector<std::string>&,
              std::string_view) override {
    line(key, yaml_of(value));
  }
  void section(std::string_view key, std::string_view,
               const std::function<void(ConfigVisitor&)>& body) override {
    line(key, "");
    YamlVisitor inner(out_, indent_ + "  ", indent_ + "  ");
    body(inner);
  }
  void list(std::string_view key, std::string_view, const std::function<size_t(int64_t)>& resize,
            const std::function<void(size_t, ConfigVisitor&)>& body) override {
    const size_t size = resize(-1);
    line(key, size == 0 ? "[]" : "");
    for (size_t i = 0; i < size; ++i) {
      YamlVisitor inner(out_, indent_ + "  - ", indent_ + "    ");
      body(i, inner);
    }
  }
  std::string where(std::string_view key) const override { return std::string(key); }
  bool is_reading() const override { return false; }

 private:
  void line(std::string_view key, const std::string& value) {
    out_ += fmt::format("{}{}:{}{}\n", lead_, key, value.empty() ? "" : " ", value);
    lead_ = indent_;
  }

  std::string& out_;
  std::string lead_;
  std::string indent_;
};

}  // namespace

std::string yaml_of(bool value) { return write_bool(value); }
std::string yaml_of(int64_t value) { return write_integer(value); }
std::string yaml_of(double value) { return write_number(value); }
std::string yaml_of(const std::string& value) { return write_text(value); }
std::string yaml_of(const std::optional<double>& value) {
  return value ? write_number(*value) : "null";
}
std::string yaml_of(const std::optional<std::string>& value) {
  return value ? write_text(*value) : "null";
}
std::string yaml_of(const std::vector<int64_t>& values) { return flow_list(values); }
std::string yaml_of(const std::vector<double>& values) { return flow_list(values); }

std::string write_yaml(const std::function<void(ConfigVisitor&)>& visit) {
  std::string out;
  YamlVisitor visitor(out, "", "");
  visit(visitor);
  return out;
}

}  // namespace grpo::app
