#include "parallel/comm/failure_board.h"

#include <charconv>
#include <set>
#include <thread>

namespace grpo::parallel {
namespace {

constexpr const char* kTroubleKey = "trouble";

std::string stuck_key(int rank) { return fmt::format("stuck/{}", rank); }

// Removes and returns the first line of `text`.
std::string take_line(std::string& text) {
  const size_t end = text.find('\n');
  CHECK(end != std::string::npos, "cut-off record in the rendezvous store: '{}'", text);
  std::string line = text.substr(0, end);
  text.erase(0, end + 1);
  return line;
}

int64_t take_integer(std::string& text) {
  const std::string line = take_line(text);
  int64_t value = 0;
  const auto result = std::from_chars(line.data(), line.data() + line.size(), value);
  CHECK(result.ec == std::errc() && result.ptr == line.data() + line.size(),
        "bad number '{}' in the rendezvous store", line);
  return value;
}

std::string on_one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

}  // namespace

std::string encode_failure(const FailureRecord& record) {
  return fmt::format("{}\n{}\n{}\n{}\n{}", record.rank, static_cast<int>(record.exit_code),
                     record.step, on_one_line(record.phase), record.message);
}

FailureRecord decode_failure(const std::string& text) {
  std::string rest = text;
  FailureRecord record;
  record.rank = static_cast<int>(take_integer(rest));
  record.exit_code = static_cast<ExitCode>(take_integer(rest));
  record.step = take_integer(rest);
  record.phase = take_line(rest);
  record.message = rest;
  return record;
}

std::string explain_waits(const std::map<int, StuckWait>& waits, int rank) {
  std::string text;
  std::set<int> seen;
  for (int current = rank; seen.insert(current).second;) {
    const auto found = waits.find(current);
    if (found == waits.end()) {
      return text + fmt::format("rank {} waits for nobody: it hangs, is stopped or is still busy",
                                current);
    }
    if (current != rank) {
      text += fmt::format("rank {} waits for rank {} in {}; ", current, found->second.peer,
                          found->second.during);
    }
    current = found->second.peer;
  }
  return text + "they wait for each other: different collectives, or different sizes";
}

std::optional<std::string> FailureBoard::get(const std::string& key) noexcept {
  try {
    return store_->get(key);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

bool FailureBoard::set(const std::string& key, const std::string& value) noexcept {
  try {
    return store_->set_if_absent(key, value);
  } catch (const std::exception&) {
    return false;
  }
}

bool FailureBoard::record(const FailureRecord& failure) noexcept {
  return set(kFailureKey, encode_failure(failure));
}

std::optional<FailureRecord> FailureBoard::first_failure(std::chrono::milliseconds grace) noexcept {
  try {
    const auto text = store_->wait(kFailureKey, grace);
    if (text) return decode_failure(*text);
  } catch (const std::exception&) {
    // A store that cannot be read tells nothing.
  }
  return std::nullopt;
}

void FailureBoard::report_stuck(const StuckWait& wait) noexcept {
  set(stuck_key(rank_), fmt::format("{}\n{}", wait.peer, on_one_line(wait.during)));
  set(kTroubleKey, std::to_string(rank_));
}

bool FailureBoard::has_trouble() noexcept {
  return get(kTroubleKey).has_value() || get(kFailureKey).has_value();
}

std::map<int, StuckWait> FailureBoard::collect_stuck(std::chrono::milliseconds patience) {
  const auto start = std::chrono::steady_clock::now();
  std::map<int, StuckWait> waits;
  for (;;) {
    for (int rank = 0; rank < size_; ++rank) {
      if (waits.contains(rank)) continue;
      if (auto text = get(stuck_key(rank))) {
        const int peer = static_cast<int>(take_integer(*text));
        waits[rank] = {peer, *text};
      }
    }
    const auto waited = std::chrono::steady_clock::now() - start;
    const int num_silent = size_ - static_cast<int>(waits.size());
    if (num_silent == 0 || waited >= patience) return waits;
    if (num_silent == 1 && waited >= patience / 3) return waits;  // most likely the one that hangs
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace grpo::parallel
