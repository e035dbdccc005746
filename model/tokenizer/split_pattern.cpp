#include "model/tokenizer/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "model/core/errors.h"
#include "model/files/json_text.h"

namespace grpo::model {
namespace {

constexpr size_t kMaxPatternBytes = 10'000;
constexpr size_t kJitStackBytes = size_t{32} << 20;

std::string pcre2_message(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// Rewrites Oniguruma's spelling into PCRE2's where both mean the same.
class DialectTranslator {
 public:
  DialectTranslator(std::string_view regex, const std::string& where)
      : regex_(regex), where_(where) {}

  std::string translate() {
    while (position_ < regex_.size()) {
      const char c = regex_[position_];
      if (c == '\\') {
        translate_escape();
      } else if (in_class_) {
        translate_in_class(c);
      } else {
        if (c == '(' && next_is("?")) check_group();
        if (c == '[') enter_class();
        copy(1);
      }
    }
    return std::move(result_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fmt::format("{}: pattern {} uses {}, which is not supported", where_,
                                shown_text(regex_), what));
  }

  bool next_is(std::string_view text) const {
    return regex_.substr(position_ + 1).starts_with(text);
  }

  void copy(size_t count) {
    result_ += regex_.substr(position_, count);
    position_ += count;
  }

  // \s in PCRE2 includes U+180E, the property White_Space (Oniguruma's \s) does not.
  void translate_escape() {
    if (position_ + 1 >= regex_.size()) refuse("a backslash at the end");
    const char c = regex_[position_ + 1];
    const std::string_view same_meaning = "rntpP";
    const bool is_punctuation =
        c > ' ' && c < '\x7f' && !std::isalnum(static_cast<unsigned char>(c));
    if (is_punctuation || same_meaning.find(c) != std::string_view::npos) {
      copy(2);
      return;
    }
    if (c == 's') {
      result_ += "\\p{White_Space}";
    } else if (c == 'S') {
      result_ += "\\P{White_Space}";
    } else if (c == 'd') {
      result_ += "\\p{Nd}";
    } else if (c == 'D') {
      result_ += "\\P{Nd}";
    } else {
      refuse(fmt::format("\\{}", shown_text(std::string_view(&c, 1))));
    }
    position_ += 2;
  }

  void enter_class() {
    in_class_ = true;
    class_start_ = position_ + 1;
    if (next_is("^")) ++class_start_;
  }

  void translate_in_class(char c) {
    if (c == '[') refuse("nested classes");
    if (c == '&' && next_is("&")) refuse("&& in a class");
    if (c == ']' && position_ == class_start_) refuse("] at the start of a class");
    if (c == ']') in_class_ = false;
    copy(1);
  }

  void check_group() const {
    for (const std::string_view kind : {"?:", "?=", "?!", "?<=", "?<!", "?>", "?i:"}) {
      if (next_is(kind)) return;
    }
    refuse("a group that begins with (?" + shown_text(regex_.substr(position_ + 2, 1)));
  }

  std::string_view regex_;
  const std::string& where_;
  size_t position_ = 0;
  bool in_class_ = false;
  size_t class_start_ = 0;
  std::string result_;
};

}  // namespace

struct SplitPattern::Compiled {
  explicit Compiled(pcre2_code* code_in) : code(code_in) {}
  ~Compiled() { pcre2_code_free(code); }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;

  pcre2_code* code;
};

SplitPattern::SplitPattern(const std::string& regex, const std::string& where) {
  if (regex.size() > kMaxPatternBytes) {
    throw DataError(fmt::format("{}: pattern of {} bytes, at most {} are allowed", where,
                                regex.size(), kMaxPatternBytes));
  }
  const std::string translated = DialectTranslator(regex, where).translate();
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  // ^ and $ match at lines in Oniguruma's default syntax.
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &error_offset, nullptr);
  if (code == nullptr) {
    throw DataError(fmt::format("{}: pattern {} does not compile: {}", where, shown_text(regex),
                                pcre2_message(error)));
  }
  compiled_ = std::make_shared<const Compiled>(code);
  // Where machine code may not be made, pcre2_match interprets the pattern: slower, with the same
  // results.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

struct PatternMatcher::State {
  explicit State(std::shared_ptr<const SplitPattern::Compiled> compiled_in)
      : compiled(std::move(compiled_in)),
        data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)) {}
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    if (jit_stack != nullptr) pcre2_jit_stack_free(jit_stack);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // The next match at or after `start`, as [begin, end); false when there is none.
  bool find(std::string_view text, size_t start, size_t& begin, size_t& end) {
    int result = match(text, start);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT && jit_stack == nullptr) {
      jit_stack = pcre2_jit_stack_create(64 << 10, kJitStackBytes, nullptr);
      pcre2_jit_stack_assign(context, nullptr, jit_stack);
      result = match(text, start);
    }
    if (result == PCRE2_ERROR_NOMATCH) return false;
    if (result < 0) {
      throw DataError(fmt::format("the tokenizer's pattern fails at byte {} of {}: {}", start,
                                  text.size(), pcre2_message(result)));
    }
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data);
    begin = offsets[0];
    end = offsets[1];
    return true;
  }

  // The text is known to be UTF-8: checking again at every match would be quadratic.
  int match(std::string_view text, size_t start) {
    return pcre2_match(compiled->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                       start, PCRE2_NO_UTF_CHECK, data, context);
  }

  std::shared_ptr<const SplitPattern::Compiled> compiled;
  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* jit_stack = nullptr;
};

PatternMatcher::PatternMatcher(const SplitPattern& pattern)
    : state_(std::make_unique<State>(pattern.compiled_)) {}
PatternMatcher::~PatternMatcher() = default;
PatternMatcher::PatternMatcher(PatternMatcher&& other) noexcept = default;

void PatternMatcher::split(std::string_view text,
                           const std::function<void(std::string_view)>& piece) {
  // A few steps a byte for one pass over the text, as a run of blanks needs; runaway patterns stop
  // here.
  const size_t limit = 10'000'000 + 16 * text.size();
  pcre2_set_match_limit(state_->context,
                        static_cast<uint32_t>(std::min<size_t>(limit, UINT32_MAX)));
  size_t done = 0;   // everything before is given out
  size_t start = 0;  // where the next match may begin
  size_t begin = 0;
  size_t end = 0;
  while (start <= text.size() && state_->find(text, start, begin, end)) {
    if (begin > done) piece(text.substr(done, begin - done));
    if (end > begin) piece(text.substr(begin, end - begin));
    done = end;
    start = end;
    if (end == begin) {  // an empty match splits here; go on after the next character
      do {
        ++start;
      } while (start < text.size() && (static_cast<unsigned char>(text[start]) & 0xc0) == 0x80);
    }
  }
  if (done < text.size()) piece(text.substr(done));
}

}  // namespace grpo::model
