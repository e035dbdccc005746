#include "tests/golden/qwen2_cases.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "generation/engine.h"
#include "model/files/safetensors.h"
#include "parallel/checkpoint/weights_io.h"
#include "rl/loop/policy_loss.h"
#include "tests/model_fixture.h"

namespace grpo::golden {

namespace {

constexpr double kTolerance = 1e-5;  // of the tensor's largest magnitude, in fp32 (golden README)

template <typename T>
std::vector<T> values_of(const model::SafetensorsFile& file, const std::string& name) {
  const std::span<const std::byte> bytes = file.bytes(name);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

class Qwen2Case {
 public:
  explicit Qwen2Case(const std::filesystem::path& folder)
      : expected_(folder / "expected.safetensors"),
        model_(rank_, model::read_model_config(folder), testing::solo_groups()) {
    parallel::load_weights(model_.store, model::WeightsDirectory(folder));
    for (int i = 0; expected_.find(key(i, "tokens")) != nullptr; ++i) {
      sequences_.push_back(values_of<int32_t>(expected_, key(i, "tokens")));
    }
  }

  void compare(Comparison& comparison) {
    if (sequences_.empty()) comparison.fail("no seq0.tokens in expected.safetensors");
    for (size_t i = 0; i < sequences_.size(); ++i) {
      comparison.tensor(key(i, "logits"), testing::logits_of(model_, sequences_[i], rank_.ctx),
                        values_of<float>(expected_, key(i, "logits")), kTolerance);
      comparison.tensor(key(i, "logprobs"), logprobs(sequences_[i]),
                        values_of<float>(expected_, key(i, "logprobs")), kTolerance);
      compare_greedy(comparison, i);
    }
    compare_training(comparison);
  }

 private:
  static std::string key(size_t i, const char* what) { return fmt::format("seq{}.{}", i, what); }

  std::vector<float> logprobs(const std::vector<int32_t>& tokens) {
    const model::PackedSequence packed{.tokens = tokens, .first_target = 1, .kept = {}};
    const model::PackedBatch batch({&packed, 1}, rank_.allocator);
    return testing::score(model_.transformer, batch, 1.0f, nullptr, rank_.ctx).processed;
  }

  void compare_greedy(Comparison& comparison, size_t i) {
    const auto expected = values_of<int32_t>(expected_, key(i, "greedy"));
    const auto num_new = static_cast<int64_t>(expected.size());
    generation::Engine engine(
        model_.transformer,
        {.max_sequence_tokens = static_cast<int64_t>(sequences_[i].size()) + num_new,
         .max_batch_size = 2,
         .page_size_tokens = 16,
         .prefill_chunk_tokens = 7},
        rank_.allocator);
    const generation::GenerationRequest request{
        .tag = 0, .draw_index = 0, .prompt_tokens = sequences_[i], .sample_indices = {0}};
    const generation::SamplingParams params{.filter = {},
                                            .greedy = true,
                                            .max_new_tokens = num_new,
                                            .stop_token_ids = {},
                                            .ignore_stop = true,
                                            .seed = 0,
                                            .split = generation::DrawSplit::kTrain,
                                            .stores_kept_tokens = false};
    const auto completions =
        engine.generate({&request, 1}, params, rank_.ctx, [](int64_t, int64_t) {});
    comparison.equal(key(i, "greedy"), fmt::format("{}", fmt::join(completions[0].tokens, " ")),
                     fmt::format("{}", fmt::join(expected, " ")));
  }

  void compare_training(Comparison& comparison) {
    std::vector<model::PackedSequence> packed;
    double num_targets = 0;
    for (const std::vector<int32_t>& tokens : sequences_) {
      packed.push_back({.tokens = tokens, .first_target = 1, .kept = {}});
      num_targets += static_cast<double>(tokens.size()) - 1;
    }
    const model::PackedBatch batch(packed, rank_.allocator);
    rl::NllLoss loss(num_targets);
    model_.store.zero_gradients();
    model_.transformer.train(batch, 1.0f, loss, nullptr, rank_.ctx);
    model_.store.reduce_gradients();
    double sum = 0;
    for (const float logprob : loss.logprobs()) sum -= static_cast<double>(logprob) / num_targets;
    const auto actual_loss = static_cast<float>(sum);
    comparison.tensor("loss", {&actual_loss, 1}, values_of<float>(expected_, "loss"), kTolerance);
    const auto gradients = testing::gather_logical(
        model_.store, [&](ParameterId id) { return model_.store.gradient_shard(id); });
    for (const auto& [name, values] : gradients) {
      comparison.tensor("grad." + name, values, values_of<float>(expected_, "grad." + name),
                        kTolerance);
    }
    for (const model::TensorInfo& info : expected_.tensors()) {
      if (!info.name.starts_with("grad.")) continue;
      const bool known = std::any_of(gradients.begin(), gradients.end(), [&](const auto& gradient) {
        return "grad." + gradient.first == info.name;
      });
      if (!known) comparison.fail("no gradient for " + info.name);
    }
  }

  model::SafetensorsFile expected_;
  testing::RankContext rank_;
  testing::TestModel model_;
  std::vector<std::vector<int32_t>> sequences_;
};

}  // namespace

std::vector<CaseResult> run_qwen2_cases(const std::filesystem::path& folder) {
  Comparison comparison;
  const std::string name = folder.filename().string();
  try {
    Qwen2Case(folder).compare(comparison);
  } catch (const std::exception& error) {
    comparison.fail(error.what());
  }
  return {comparison.result("qwen2", name)};
}

}  // namespace grpo::golden
