#include "tools/benchmark/options.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "generation/generation_config.h"
#include "model/core/errors.h"
#include "rl/config/run_config.h"

namespace grpo::benchmark {

namespace {

constexpr int64_t kLargestCount = int64_t{1} << 24;

// The words of the command line before they are put together.
struct Words {
  std::vector<std::string> parts{"all"};
  std::optional<int64_t> hidden_size, layers, heads, kv_heads, intermediate_size, vocab_size;
  double peak_tflops = 790;
  double peak_tbps = 4.3;
};

void add_count(CLI::App& app, const char* name, int64_t& value, const char* text) {
  app.add_option(name, value, text)->check(CLI::Range(int64_t{1}, kLargestCount));
}

void add_training(CLI::App& app, Options& options) {
  add_count(app, "--micro-batch-tokens", options.micro_batch_tokens, "tokens a micro-batch");
  add_count(app, "--sequence-length", options.sequence_length, "tokens a training sequence");
  add_count(app, "--context-tokens", options.context_tokens,
            "first tokens of a training sequence, which are not predicted");
  add_count(app, "--micro-batches", options.micro_batches, "micro-batches an optimizer step");
  add_count(app, "--head-chunk-rows", options.head_chunk_rows,
            "rows of logits that exist at once (policy.sequence_packing.logprob_chunk_tokens)");
}

void add_generation(CLI::App& app, Options& options) {
  add_count(app, "--sequences", options.num_sequences, "sequences generated together");
  app.add_option("--prompts", options.num_prompts,
                 "prompts they belong to, in equal shares; several numbers: a measurement each")
      ->check(CLI::Range(int64_t{1}, kLargestCount))
      ->delimiter(',');
  add_count(app, "--prompt-tokens", options.prompt_tokens, "tokens a prompt");
  add_count(app, "--new-tokens", options.new_tokens, "tokens generated a sequence");
  add_count(app, "--page-size-tokens", options.page_size_tokens, "tokens a page of the KV cache");
  add_count(app, "--prefill-chunk-tokens", options.prefill_chunk_tokens,
            "prompt tokens run through the model at once");
  app.add_flag("--enforce-eager", options.enforce_eager,
               "start decode steps kernel by kernel, not as CUDA graphs");
}

void add_sizes(CLI::App& app, Words& words) {
  const auto add = [&](const char* name, std::optional<int64_t>& value) {
    app.add_option(name, value, "of --model custom")->check(CLI::Range(int64_t{1}, kLargestCount));
  };
  add("--hidden-size", words.hidden_size);
  add("--layers", words.layers);
  add("--heads", words.heads);
  add("--kv-heads", words.kv_heads);
  add("--intermediate-size", words.intermediate_size);
  add("--vocab-size", words.vocab_size);
}

model::ModelConfig custom_model(const Words& words) {
  const rl::ModelSizesConfig defaults;
  model::ModelConfig config{
      .hidden_size = words.hidden_size.value_or(defaults.hidden_size),
      .num_layers = words.layers.value_or(defaults.num_hidden_layers),
      .num_heads = words.heads.value_or(defaults.num_attention_heads),
      .num_kv_heads = words.kv_heads.value_or(defaults.num_key_value_heads),
      .head_dim = 0,
      .intermediate_size = words.intermediate_size.value_or(defaults.intermediate_size),
      .vocab_size = words.vocab_size.value_or(256),
      .max_position_embeddings = kLargestCount,
      .rms_norm_eps = defaults.rms_norm_eps,
      .rope_theta = defaults.rope_theta,
      .tie_word_embeddings = true,
      .dtype = DType::kFloat32,
      .eos_token_ids = {}};
  if (config.hidden_size % config.num_heads != 0) {
    throw ConfigError(fmt::format("--hidden-size {}; allowed: a multiple of --heads, {}",
                                  config.hidden_size, config.num_heads));
  }
  config.head_dim = config.hidden_size / config.num_heads;
  if (const auto problem = model::find_problem(config)) {
    throw ConfigError("--model custom: " + *problem);
  }
  return config;
}

model::ModelConfig find_model(const std::string& name, const Words& words) {
  if (name == "custom") return custom_model(words);
  const auto preset = model::preset_model_config(name);
  if (!preset) {
    throw ConfigError(fmt::format("--model is '{}'; allowed: {}, custom", name,
                                  fmt::join(model::preset_names(), ", ")));
  }
  if (words.hidden_size || words.layers || words.heads || words.kv_heads ||
      words.intermediate_size || words.vocab_size) {
    throw ConfigError(fmt::format("sizes beside --model {}; allowed: with --model custom", name));
  }
  return *preset;
}

std::set<Part> find_parts(const std::vector<std::string>& words) {
  const std::map<std::string, std::set<Part>> known{
      {"train", {Part::kTrain}},
      {"score", {Part::kScore}},
      {"generate", {Part::kGenerate}},
      {"refit", {Part::kRefit}},
      {"all", {Part::kTrain, Part::kScore, Part::kGenerate, Part::kRefit}},
      {"none", {}}};
  std::set<Part> parts;
  for (const std::string& word : words) {
    const auto found = known.find(word);
    if (found == known.end()) {
      throw ConfigError(
          fmt::format("--phase is '{}'; allowed: train, score, generate, refit, all, none", word));
    }
    parts.insert(found->second.begin(), found->second.end());
  }
  return parts;
}

void expect_multiple(const char* name, int64_t value, const char* of, int64_t divisor) {
  if (value % divisor != 0) {
    throw ConfigError(
        fmt::format("{} {}; allowed: a multiple of {}, {}", name, value, of, divisor));
  }
}

// Rules between options.
void complete(Options& options, const Words& words) {
  options.model = find_model(options.model_name, words);
  options.parts = find_parts(words.parts);
  options.ceilings = {.flops_per_second = words.peak_tflops * 1e12,
                      .bytes_per_second = words.peak_tbps * 1e12};
  if (options.precision != "bfloat16" && options.precision != "float32") {
    throw ConfigError(
        fmt::format("--precision is '{}'; allowed: bfloat16, float32", options.precision));
  }
  if (options.device != "auto" && options.device != "cpu" && options.device != "cuda") {
    throw ConfigError(fmt::format("--device is '{}'; allowed: auto, cpu, cuda", options.device));
  }
  expect_multiple("--micro-batch-tokens", options.micro_batch_tokens, "--sequence-length",
                  options.sequence_length);
  if (options.context_tokens >= options.sequence_length) {
    throw ConfigError(fmt::format("--context-tokens {}; allowed: less than --sequence-length, {}",
                                  options.context_tokens, options.sequence_length));
  }
  if (options.num_prompts.empty()) {
    options.num_prompts = {options.num_sequences};
    if (options.num_sequences % 8 == 0)
      options.num_prompts = {options.num_sequences / 8, options.num_sequences};
  }
  for (const int64_t prompts : options.num_prompts) {
    expect_multiple("--sequences", options.num_sequences, "--prompts", prompts);
  }
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  Words words;
  options.model_name = "qwen2.5-0.5b";
  CLI::App app("Times the phases of a run on random weights and holds them against their floors",
               "grpo_benchmark");
  app.add_option("--model", options.model_name, "preset, or custom with the sizes below");
  app.add_option("--phase", words.parts, "train, score, generate, refit, all, none")
      ->delimiter(',');
  app.add_flag("--kernels", options.kernels, "also time every operator of the training step")
      ->disable_flag_override();
  app.add_option("--products", options.product_candidates,
                 "also time this many of the matrix library's algorithms for every product")
      ->check(CLI::Range(int64_t{0}, int64_t{32}))
      ->type_name("N");
  app.add_flag("--fast", options.fast, "numerics.mode=fast: products may split their sums")
      ->disable_flag_override();
  app.add_option("--precision", options.precision, "bfloat16 or float32");
  app.add_option("--device", options.device, "cpu, cuda or auto (as parallel.device)");
  add_count(app, "--repeats", options.repeats, "measurements after a warm-up; medians are shown");
  add_training(app, options);
  add_generation(app, options);
  add_sizes(app, words);
  app.add_option("--peak-tflops", words.peak_tflops, "ceiling of products, TFLOP/s")
      ->check(CLI::PositiveNumber);
  app.add_option("--peak-tbps", words.peak_tbps, "ceiling of memory, TB/s, read and written")
      ->check(CLI::PositiveNumber);
  app.add_option("--json", options.json_path, "also write the figures to this file")
      ->type_name("FILE");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const std::string text = app.help();
    std::fwrite(text.data(), 1, text.size(), stdout);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw ConfigError(std::string(error.what()));
  }
  complete(options, words);
  return options;
}

}  // namespace grpo::benchmark
