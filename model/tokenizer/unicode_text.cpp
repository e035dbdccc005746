#include "model/tokenizer/unicode_text.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <array>
#include <vector>

#include "model/core/errors.h"

namespace grpo::model {
namespace {

// ICU sorts the marks of one character by insertion, which is quadratic in their number. Runs from
// this length on are sorted here first; what remains for ICU is in order and costs a step a mark.
constexpr size_t kLongMarkRun = 32;
// ICU counts bytes and code units in 32-bit integers.
constexpr size_t kMaxNormalizedBytes = size_t{1} << 29;

const icu::Normalizer2& nfc_instance() {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* instance = icu::Normalizer2::getNFCInstance(error);
  CHECK(U_SUCCESS(error), "ICU has no NFC data: {}", u_errorName(error));
  return *instance;
}

uint8_t first_combining_class(char32_t code_point) {
  return static_cast<uint8_t>(u_getIntPropertyValue(static_cast<UChar32>(code_point),
                                                    UCHAR_LEAD_CANONICAL_COMBINING_CLASS));
}

// Appends the canonical decompositions of a run of marks in canonical order: stable by combining
// class.
void append_sorted_marks(std::string& out, const std::vector<char32_t>& run,
                         const icu::Normalizer2& nfc) {
  std::vector<char32_t> marks;
  icu::UnicodeString decomposition;
  for (const char32_t code_point : run) {
    if (!nfc.getDecomposition(static_cast<UChar32>(code_point), decomposition)) {
      marks.push_back(code_point);
      continue;
    }
    for (int32_t i = 0; i < decomposition.length(); i = decomposition.moveIndex32(i, 1)) {
      marks.push_back(static_cast<char32_t>(decomposition.char32At(i)));
    }
  }
  std::array<std::vector<char32_t>, 256> by_class;
  for (const char32_t mark : marks)
    by_class[u_getCombiningClass(static_cast<UChar32>(mark))].push_back(mark);
  for (const auto& same_class : by_class) {
    for (const char32_t mark : same_class) append_utf8(out, mark);
  }
}

// A canonically equivalent text without long unsorted runs of marks.
std::string with_sorted_mark_runs(std::string_view text, const icu::Normalizer2& nfc) {
  std::string out;
  out.reserve(text.size());
  std::vector<char32_t> run;
  size_t run_start = 0;
  const auto end_run = [&](size_t position) {
    if (run.size() < kLongMarkRun) {
      out.append(text.substr(run_start, position - run_start));
    } else {
      append_sorted_marks(out, run, nfc);
    }
    run.clear();
  };
  for (size_t position = 0; position < text.size();) {
    const size_t length = utf8_step(text, position).length;
    const char32_t code_point = code_point_at(text, position);
    const bool is_mark = code_point >= 0x300 && first_combining_class(code_point) != 0;
    if (is_mark) {
      if (run.empty()) run_start = position;
      run.push_back(code_point);
    } else {
      if (!run.empty()) end_run(position);
      out.append(text.substr(position, length));
    }
    position += length;
  }
  if (!run.empty()) end_run(text.size());
  return out;
}

}  // namespace

Utf8Step utf8_step(std::string_view text, size_t position) {
  const std::string_view bytes = text.substr(position, U8_MAX_LENGTH);
  const auto num_bytes = static_cast<int32_t>(bytes.size());
  int32_t length = 0;
  UChar32 code_point = 0;
  U8_NEXT(bytes.data(), length, num_bytes, code_point);
  auto status = Utf8Status::kValid;
  if (code_point < 0) {
    const bool ends_inside = length == num_bytes && U8_IS_LEAD(bytes.front());
    status = ends_inside ? Utf8Status::kIncomplete : Utf8Status::kInvalid;
  }
  return {status, static_cast<size_t>(length)};
}

char32_t code_point_at(std::string_view text, size_t position) {
  const std::string_view bytes = text.substr(position, U8_MAX_LENGTH);
  int32_t length = 0;
  UChar32 code_point = 0;
  U8_NEXT_OR_FFFD(bytes.data(), length, static_cast<int32_t>(bytes.size()), code_point);
  return static_cast<char32_t>(code_point);
}

void append_utf8(std::string& text, char32_t code_point) {
  std::array<char, U8_MAX_LENGTH> bytes;
  size_t length = 0;
  U8_APPEND_UNSAFE(bytes, length, code_point);
  text.append(bytes.data(), length);
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
      append_utf8(result, U'\uFFFD');
    }
    position += step.length;
  }
  return result;
}

std::string to_nfc(std::string_view text) {
  // Characters below U+0300 are their own NFC and never combine with each other.
  const bool is_simple = std::all_of(
      text.begin(), text.end(), [](char byte) { return static_cast<unsigned char>(byte) < 0xcc; });
  if (is_simple) return std::string(text);
  if (text.size() > kMaxNormalizedBytes) {
    throw DataError(fmt::format("the text has {} bytes, at most {} can be normalized", text.size(),
                                kMaxNormalizedBytes));
  }
  const icu::Normalizer2& nfc = nfc_instance();
  const std::string sorted = with_sorted_mark_runs(text, nfc);
  std::string result;
  icu::StringByteSink<std::string> sink(&result, static_cast<int32_t>(sorted.size()));
  UErrorCode error = U_ZERO_ERROR;
  nfc.normalizeUTF8(0, {sorted.data(), static_cast<int32_t>(sorted.size())}, sink, nullptr, error);
  CHECK(U_SUCCESS(error), "ICU cannot normalize: {}", u_errorName(error));
  return result;
}

bool is_white_space(char32_t code_point) {
  return u_isUWhiteSpace(static_cast<UChar32>(code_point)) != 0;
}

bool is_word(char32_t code_point) {
  const auto c = static_cast<UChar32>(code_point);
  return u_hasBinaryProperty(c, UCHAR_ALPHABETIC) || u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL) ||
         (U_GET_GC_MASK(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

}  // namespace grpo::model
