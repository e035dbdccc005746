#include "rl/loop/sample_record.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "model/files/json_text.h"

namespace grpo::rl {

namespace {

template <typename Number>
void append_number(std::string& line, Number value) {
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(value)) {
      line += std::isnan(value) ? "\"nan\"" : value > 0 ? "\"inf\"" : "\"-inf\"";
      return;
    }
  }
  fmt::format_to(std::back_inserter(line), "{}", value);
}

// One object, field after field.
class JsonLine {
 public:
  void text(const char* key, std::string_view value) { begin(key) += model::json_string(value); }

  template <typename Number>
  void number(const char* key, Number value) {
    append_number(begin(key), value);
  }

  template <typename Number>
  void numbers(const char* key, const std::vector<Number>& values) {
    std::string& line = begin(key);
    line += '[';
    for (const Number& value : values) {
      if (line.back() != '[') line += ',';
      append_number(line, value);
    }
    line += ']';
  }

  template <typename Number>
  void numbers_or_null(const char* key, const std::vector<Number>& values) {
    if (values.empty()) return null(key);
    numbers(key, values);
  }

  void null(const char* key) { begin(key) += "null"; }
  void json(const char* key, const std::string& value) { begin(key) += value; }

  std::string take() { return std::move(line_) + "}"; }

 private:
  std::string& begin(const char* key) {
    line_ += line_.empty() ? "{\"" : ",\"";
    line_ += key;
    return line_ += "\":";
  }

  std::string line_;
};

std::string reward_parts(const SampleOrigin& origin, const RolloutSequence& sequence) {
  CHECK(origin.reward_names.size() == sequence.reward_components.size());
  std::string parts = "{";
  for (size_t i = 0; i < origin.reward_names.size(); ++i) {
    if (i > 0) parts += ',';
    parts += model::json_string(origin.reward_names[i]) + ":";
    append_number(parts, sequence.reward_components[i]);
  }
  return parts + "}";
}

}  // namespace

std::string sample_json(const SampleOrigin& origin, const RolloutSequence& sequence,
                        const PromptExample& example, const SequenceSignals& signals,
                        const KeptPlace* kept) {
  const bool stopped = sequence.finish_reason == generation::FinishReason::kStop;
  JsonLine line;
  line.number("schema_version", kSampleSchemaVersion);
  line.number("step", origin.step);
  line.number("weights_version", origin.weights_version);
  line.text("data_set", origin.data_path);
  line.number("line", example.line);
  line.number("example", sequence.example);
  line.number("group", sequence.group);
  line.number("sample", sequence.sample);
  line.number("prompt_index", origin.first_prompt_index + sequence.group);
  line.text("prompt", example.prompt);
  line.text("response", sequence.text);
  line.text("answer", example.answer);
  line.numbers("prompt_tokens", sequence.prompt_tokens);
  line.numbers("response_tokens", sequence.response_tokens);
  line.numbers("generation_logprobs", sequence.generation_logprobs);
  line.numbers_or_null("prev_logprobs", signals.previous_logprobs);
  line.numbers_or_null("reference_policy_logprobs", signals.reference_logprobs);
  line.null("entropy");
  if (kept == nullptr) {
    line.null("kept_tokens");
  } else {
    line.json("kept_tokens",
              fmt::format(R"({{"offset":{},"bytes":{},"num_ids":{},"has_thresholds":{}}})",
                          kept->offset, kept->num_bytes, sequence.kept_source.num_ids,
                          sequence.kept_source.has_thresholds));
  }
  line.number("reward", sequence.reward);
  line.json("reward_parts", reward_parts(origin, sequence));
  line.null("masked");
  line.number("advantage", signals.advantage);
  line.text("finish_reason", stopped ? "stop" : "length");
  return line.take();
}

SampleBatch record_samples(const SampleOrigin& origin,
                           const std::function<const PromptExample&(int64_t)>& example_at,
                           std::span<const RolloutSequence> sequences,
                           std::span<const SequenceSignals> signals) {
  SampleBatch batch;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const RolloutSequence& sequence = sequences[i];
    KeptPlace place{static_cast<int64_t>(batch.kept_tokens.size()), 0};
    const bool has_kept = !sequence.kept.empty();
    if (has_kept) {
      place.num_bytes = ops::KeptTokens::packed_bytes(
          sequence.kept.num_rows(), sequence.kept.num_ids(), sequence.kept.has_thresholds());
      batch.kept_tokens.resize(batch.kept_tokens.size() + static_cast<size_t>(place.num_bytes));
      sequence.kept.pack(std::span(batch.kept_tokens).subspan(static_cast<size_t>(place.offset)));
    }
    batch.lines.push_back(sample_json(origin, sequence, example_at(sequence.example), signals[i],
                                      has_kept ? &place : nullptr));
  }
  batch.num_recorded = batch.lines.size();
  return batch;
}

}  // namespace grpo::rl
