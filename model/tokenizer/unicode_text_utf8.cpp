#include "model/core/errors.h"
#include "model/tokenizer/unicode_text.h"

namespace grpo::model {
namespace {

struct LeadByte {
  size_t length;            // of the character; 0 when no character begins so
  unsigned char low, high;  // what the second byte may be
};

LeadByte lead_byte(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xc2) return {0, 0, 0};
  if (byte < 0xe0) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4, 0x80, 0xbf};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view text, size_t position) {
  const LeadByte lead = lead_byte(static_cast<unsigned char>(text[position]));
  if (lead.length == 0) return {Utf8Status::kInvalid, 1};
  for (size_t i = 1; i < lead.length; ++i) {
    if (position + i == text.size()) return {Utf8Status::kIncomplete, i};
    const auto byte = static_cast<unsigned char>(text[position + i]);
    const unsigned char low = i == 1 ? lead.low : 0x80;
    const unsigned char high = i == 1 ? lead.high : 0xbf;
    if (byte < low || byte > high) return {Utf8Status::kInvalid, i};
  }
  return {Utf8Status::kValid, lead.length};
}

char32_t code_point_at(std::string_view text, size_t position, size_t length) {
  const auto first = static_cast<unsigned char>(text[position]);
  if (length == 1) return first;
  char32_t code_point = first & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    code_point = (code_point << 6) | (static_cast<unsigned char>(text[position + i]) & 0x3fu);
  }
  return code_point;
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto push = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xc0 | (code_point >> 6));
    push(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    push(0xe0 | (code_point >> 12));
    push(0x80 | ((code_point >> 6) & 0x3f));
    push(0x80 | (code_point & 0x3f));
  } else {
    push(0xf0 | (code_point >> 18));
    push(0x80 | ((code_point >> 12) & 0x3f));
    push(0x80 | ((code_point >> 6) & 0x3f));
    push(0x80 | (code_point & 0x3f));
  }
}

void check_utf8(std::string_view text) {
  for (size_t position = 0; position < text.size();) {
    const Utf8Step step = utf8_step(text, position);
    if (step.status != Utf8Status::kValid) {
      throw DataError(fmt::format("the text is not UTF-8: byte 0x{:02x} at offset {}",
                                  static_cast<unsigned char>(text[position]), position));
    }
    position += step.length;
  }
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t position = 0; position < text.size();) {
    const Utf8Step step = utf8_step(text, position);
    if (step.status == Utf8Status::kValid) {
      result.append(text.substr(position, step.length));
    } else {
      result.append("\xef\xbf\xbd");
    }
    position += step.length;
  }
  return result;
}

}  // namespace grpo::model
