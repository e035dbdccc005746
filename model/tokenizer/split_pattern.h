// Splits text by the regular expression of a tokenizer.json, through PCRE2 with its JIT compiler.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace grpo::model {

// Immutable; thread-safe. tokenizer.json speaks Oniguruma's dialect; the part of it where both
// engines agree is accepted (\s and \S are spelt out as the Unicode property), anything else is
// refused.
class SplitPattern {
 public:
  // Throws DataError "where: problem" for a pattern that does not compile or is outside the common
  // part.
  SplitPattern(const std::string& regex, const std::string& where);

 private:
  friend class PatternMatcher;
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

// The memory that matching needs, for one thread at a time. Keeps a reference to the pattern.
class PatternMatcher {
 public:
  explicit PatternMatcher(const SplitPattern& pattern);
  ~PatternMatcher();
  PatternMatcher(PatternMatcher&& other) noexcept;

  // Calls `piece` with every match and every part between matches, in order; none is empty. The
  // text is UTF-8. Time is linear for patterns without nested repetition; one that backtracks
  // without end throws DataError.
  void split(std::string_view text, const std::function<void(std::string_view)>& piece);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace grpo::model
