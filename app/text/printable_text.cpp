#include "app/text/printable_text.h"

#include <fmt/format.h>

#include "model/tokenizer/unicode_text.h"

namespace grpo::app {

namespace {

bool is_control(char32_t code_point) {
  const bool is_line_end = code_point == 0x2028 || code_point == 0x2029;
  return code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0) || is_line_end;
}

std::string escaped_bytes(const std::string& bytes) {
  if (bytes == "\n") return "\\n";
  if (bytes == "\t") return "\\t";
  std::string out;
  for (const char byte : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return out;
}

}  // namespace

std::string escaped(const std::string& text) { return printable(text, std::string::npos); }

std::string printable(const std::string& text, size_t longest) {
  std::string out;
  for (size_t position = 0; position < text.size();) {
    if (out.size() >= longest) return out + "...";
    model::Utf8Step step = model::utf8_step(text, position);
    if (step.status == model::Utf8Status::kIncomplete) step.length = text.size() - position;
    const std::string bytes = text.substr(position, step.length);
    const bool is_plain = step.status == model::Utf8Status::kValid &&
                          !is_control(model::code_point_at(text, position));
    out += is_plain ? bytes : escaped_bytes(bytes);
    position += step.length;
  }
  return out;
}

}  // namespace grpo::app
