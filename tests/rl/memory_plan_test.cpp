// The memory plan against runs in which its worst case happens: prompts of one length, responses of
// full length, token limits that whole sequences fill.
#include "rl/run/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <limits>

#include "model/core/errors.h"
#include "rl/config/resolve_config.h"
#include "rl/run/memory_report.h"
#include "tests/app/scratch_folder.h"
#include "tests/rl/trained_model.h"

namespace grpo::rl {
namespace {

constexpr int64_t kDrawn = 9;
constexpr size_t kMiB = size_t{1} << 20;

// Prompts of one length.
void write_prompts(const std::filesystem::path& path) {
  std::ofstream file(path);
  for (int a = 10; a < 26; ++a) {
    file << fmt::format("{{\"question\": \"{}+{}=\", \"answer\": \"{}\"}}\n", a, a + 20,
                        2 * a + 20);
  }
}

int64_t sequence_tokens(const RunConfig& config) {
  const auto tokenizer = model::load_tokenizer(config.policy.tokenizer.name);
  const PromptDataset dataset(config.data.train, *tokenizer);
  const DatasetLengths lengths = dataset.lengths();
  EXPECT_EQ(lengths.shortest_prompt, lengths.longest_prompt);
  return lengths.longest_prompt + kDrawn;
}

RunConfig base_config(const std::filesystem::path& folder) {
  RunConfig config;
  config.policy.model_name = "custom";
  config.policy.model = {.hidden_size = 32,
                         .num_hidden_layers = 2,
                         .num_attention_heads = 4,
                         .num_key_value_heads = 2,
                         .intermediate_size = 64,
                         .vocab_size = 64};
  config.policy.tokenizer.name = GRPO_SOURCE_DIR "/configs/demo/tokenizer.model";
  config.policy.max_total_sequence_length = 32;
  config.policy.generation.max_new_tokens = kDrawn;
  config.policy.generation.ignore_eos = true;
  config.grpo.num_prompts_per_step = 4;
  config.grpo.num_generations_per_prompt = 3;
  config.grpo.max_num_steps = 2;
  config.data.train.path = (folder / "prompts.jsonl").string();
  config.data.train.prompt_template = "{question}";
  config.data.train.response_template = "{answer}";
  config.env.rewards.emplace_back();
  config.logger.log_dir = (folder / "run").string();
  return config;
}

struct PlanCase {
  std::string name;
  std::function<void(RunConfig&, int64_t sequence_tokens)> change;
  // Of the planned workspace. Less where a plan must reckon with short prompts only, or a rank with
  // a micro-batch as full as its peers'.
  double reached = 0.95;
};

void PrintTo(const PlanCase& plan_case, std::ostream* out) { *out << plan_case.name; }

void make_odd(RunConfig& config) {
  config.policy.model.hidden_size = 40;
  config.policy.model.num_attention_heads = 5;
  config.policy.model.num_key_value_heads = 1;
  config.policy.model.intermediate_size = 50;
  config.policy.model.vocab_size = 101;
  config.policy.model.num_hidden_layers = 3;
}

const PlanCase kCases[] = {
    {"even", [](RunConfig& config, int64_t) { config.loss_fn.reference_policy_kl_penalty = 0; }},
    {"odd_gtp2_kl",
     [](RunConfig& config, int64_t) {
       make_odd(config);
       config.parallel.gtp_remat = 2;
       config.loss_fn.reference_policy_kl_penalty = 0.1;
     }},
    {"odd_untied_gtp3_updates_saved",
     [](RunConfig& config, int64_t tokens) {
       make_odd(config);
       config.policy.model.tie_word_embeddings = false;
       config.parallel.gtp_remat = 3;
       config.policy.train_global_batch_size = 6;
       config.policy.max_total_sequence_length = tokens;
       config.policy.sequence_packing = {.train_mb_tokens = 2 * tokens,
                                         .logprob_mb_tokens = 3 * tokens,
                                         .logprob_chunk_tokens = 7};
       config.checkpointing.enabled = true;
       config.checkpointing.save_period = 1;
     },
     0.65},
    {"gtp2_dp2_bf16",
     [](RunConfig& config, int64_t) {
       config.policy.precision = "bfloat16";
       config.parallel.gtp_remat = 2;
       config.parallel.data = 2;
       config.loss_fn.reference_policy_kl_penalty = 0.1;
       config.checkpointing.enabled = true;
     }},
    {"dp2_cuts_warm_start",
     [](RunConfig& config, int64_t tokens) {
       config.parallel.data = 2;
       config.policy.generation.top_k = 5;
       config.policy.generation.top_p = 0.9;
       config.policy.generation.prefill_chunk_tokens = 4;
       config.policy.generation.max_batch_size = 4;
       config.policy.generation.page_size_tokens = 4;
       config.policy.sequence_packing.train_mb_tokens = 4 * tokens;
       config.warm_start = {.num_steps = 2, .global_batch_size = 8};
     }},
    {"gtp2_validated",
     [](RunConfig& config, int64_t) {
       config.parallel.gtp_remat = 2;
       config.data.validation.push_back({.name = "validation", .path = config.data.train.path});
       config.grpo.validation.val_period = 1;
       config.grpo.val_num_generations_per_prompt = 2;
     }},
    {"sft_gtp2_dp2_validated_saved",
     [](RunConfig& config, int64_t tokens) {
       config.algorithm = "sft";
       config.env.rewards.clear();
       config.policy.train_global_batch_size = 8;
       config.sft.max_num_steps = 2;
       config.sft.validation.val_period = 1;
       config.data.validation.push_back({.name = "validation", .path = config.data.train.path});
       config.parallel.gtp_remat = 2;
       config.parallel.data = 2;
       config.policy.max_total_sequence_length = tokens - kDrawn + 3;  // an answer of two digits
       config.checkpointing.enabled = true;
     }},
    // A rank's two sequences are of one prompt or of two.
    {"odd_gtp3_dp2_prompts_straddle_ranks",
     [](RunConfig& config, int64_t) {
       make_odd(config);
       config.parallel.gtp_remat = 3;
       config.parallel.data = 2;
       config.loss_fn.reference_policy_kl_penalty = 0.1;
       config.checkpointing.enabled = true;
     },
     0.65},
    {"sequence_loss_sgd_one_step",
     [](RunConfig& config, int64_t) {
       config.loss_fn.sequence_level_importance_ratios = true;
       config.loss_fn.token_level_loss = false;
       config.policy.optimizer.name = "sgd";
       config.grpo.max_num_steps = 1;
     }},
};

class MeasuredPlan : public ::testing::TestWithParam<PlanCase> {};

TEST_P(MeasuredPlan, IsReachedAndNeverPassed) {
  const testing::ScratchFolder folder;
  write_prompts(std::filesystem::path(folder.path()) / "prompts.jsonl");
  RunConfig config = base_config(folder.path());
  GetParam().change(config, sequence_tokens(config));
  const testing::RecordedRun run = testing::run_training(config);
  ASSERT_FALSE(run.plan.ranks.empty());
  ASSERT_EQ(run.memory.ranks.size(), run.plan.ranks.size());
  for (size_t rank = 0; rank < run.plan.ranks.size(); ++rank) {
    const std::vector<PhasePlan>& phases = run.plan.ranks[rank].phases;
    ASSERT_EQ(run.memory.ranks[rank].size(), phases.size());
    for (size_t i = 0; i < phases.size(); ++i) {
      SCOPED_TRACE(fmt::format("rank {}, {}", rank, phases[i].phase));
      const MeasuredPeak& measured = run.memory.ranks[rank][i];
      const auto planned = static_cast<double>(phases[i].peak.bytes);
      EXPECT_LE(static_cast<double>(measured.bytes), planned);
      EXPECT_GE(static_cast<double>(measured.bytes), 0.95 * planned);
      const auto planned_workspace = static_cast<double>(phases[i].peak.workspace.total());
      EXPECT_LE(static_cast<double>(measured.workspace_bytes), planned_workspace);
      EXPECT_GE(static_cast<double>(measured.workspace_bytes),
                GetParam().reached * planned_workspace);
      EXPECT_EQ(run.steps.back().at("memory/" + phases[i].phase + "/planned_bytes"),
                static_cast<double>(run.plan.ranks[0].phases[i].peak.bytes));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, MeasuredPlan, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return test.param.name; });

// Beside one long prompt, on which the plan's sequences are modelled, thousands of short ones:
// their arrays count too.
TEST(MemoryPlan, ManyShortSequencesStayWithinThePlan) {
  const testing::ScratchFolder folder;
  RunConfig config = base_config(folder.path());
  {
    std::ofstream file(config.data.train.path);
    file << fmt::format("{{\"question\": \"{}\", \"answer\": \"2\"}}\n", std::string(200, '1'));
    for (int i = 0; i < 4000; ++i) file << "{\"question\": \"1\", \"answer\": \"2\"}\n";
  }
  config.policy.model.hidden_size = 16;
  config.policy.model.num_attention_heads = 2;
  config.policy.model.num_key_value_heads = 1;
  config.policy.model.intermediate_size = 16;
  config.policy.model.num_hidden_layers = 1;
  config.policy.max_total_sequence_length = 256;
  config.policy.generation.max_new_tokens = 1;
  config.policy.sequence_packing = {.train_mb_tokens = 16384,
                                    .train_mb_multiple = 1,
                                    .logprob_mb_tokens = 16384,
                                    .logprob_chunk_tokens = 8};
  config.grpo.num_prompts_per_step = 1900;
  config.grpo.num_generations_per_prompt = 4;
  config.loss_fn.reference_policy_kl_penalty = 0.1;
  for (const int gtp_remat : {1, 2}) {
    config.parallel.gtp_remat = gtp_remat;
    const testing::RecordedRun run = testing::run_training(config);
    ASSERT_FALSE(run.plan.ranks.empty());
    for (size_t rank = 0; rank < run.plan.ranks.size(); ++rank) {
      const std::vector<PhasePlan>& phases = run.plan.ranks[rank].phases;
      for (size_t i = 0; i < phases.size(); ++i) {
        EXPECT_LE(run.memory.ranks[rank][i].bytes, phases[i].peak.bytes)
            << phases[i].phase << " of rank " << rank;
      }
    }
  }
}

TEST(MemoryPlan, QwenByHand) {
  RunConfig config = base_config("/nowhere");
  config.policy.model_name = "qwen2.5-0.5b";
  config.policy.precision = "bfloat16";
  config.policy.max_total_sequence_length = 1024;
  config.policy.generation.max_new_tokens = 512;
  config.policy.sequence_packing.logprob_chunk_tokens = 1024;
  config.grpo.num_prompts_per_step = 8;
  config.grpo.num_generations_per_prompt = 16;
  config.parallel.gtp_remat = 2;
  config.loss_fn.reference_policy_kl_penalty = 0.1;
  resolve(config, 2);
  const MemoryPlan plan =
      plan_memory(config, *model::preset_model_config("qwen2.5-0.5b"), std::nullopt, Device::cpu());
  ASSERT_EQ(plan.ranks.size(), 2u);
  const PhasePeak& training = plan.ranks[0].find("policy_training")->peak;
  const OwnerBytes& owners = training.by_owner;
  constexpr size_t kParameters = 494'032'768;
  // 24 layers of two norms (896) and a QKV bias (1152), and the last norm, are whole on both ranks.
  constexpr size_t kReplicated = 24 * (2 * 896 + 1152) + 896;
  constexpr size_t kShard = (kParameters - kReplicated) / 2 + kReplicated;
  EXPECT_EQ(owners.at("policy/weights"), 2 * kShard);
  EXPECT_EQ(owners.at("reference/weights"), 2 * kShard);
  EXPECT_EQ(owners.at("policy/gradients"), 4 * kShard);
  EXPECT_EQ(owners.at("optimizer/master"), 4 * kShard);
  EXPECT_EQ(owners.at("optimizer/moments"), 8 * kShard);
  EXPECT_EQ(owners.at("generation/weights"), 2 * kParameters);
  // K and V of 24 layers, 2 heads of 64, in bfloat16; 64 sequences and a prompt of 1024 tokens.
  EXPECT_EQ(owners.at("kv_cache"), size_t{65} * 1024 * 24 * 2 * 2 * 64 * 2);
  // In float32, and their gradients in bfloat16.
  EXPECT_EQ(training.workspace[ScratchOwner::kLogits], size_t{1024} * 151'936 * (4 + 2));
  size_t sum = 0;
  for (const auto& [owner, bytes] : owners) sum += bytes;
  EXPECT_EQ(sum, training.bytes);
  EXPECT_EQ(plan.fullest_rank(), 0);
}

TEST(MemoryPlan, NeedsNoMemory) {
  RunConfig config = base_config("/nowhere");
  config.policy.precision = "bfloat16";
  config.parallel.gtp_remat = 2;
  resolve(config, 2);
  model::ModelConfig model = *model::preset_model_config("qwen2.5-0.5b");
  model.num_layers = 600;
  const MemoryPlan plan = plan_memory(config, model, std::nullopt, Device::cpu());
  EXPECT_GT(plan.ranks[0].peak_bytes(), size_t{50} * 1024 * kMiB);
}

// Ranks that need the same are rehearsed once.
TEST(MemoryPlan, ThousandsOfRanksTakeNoTime) {
  RunConfig config = base_config("/nowhere");
  config.parallel.gtp_remat = 512;
  config.parallel.data = 4;
  config.grpo.num_prompts_per_step = 1024;
  config.grpo.num_generations_per_prompt = 4;
  config.checkpointing.enabled = true;
  resolve(config, 2048);
  const model::ModelConfig model{.hidden_size = 32,
                                 .num_layers = 2,
                                 .num_heads = 4,
                                 .num_kv_heads = 2,
                                 .head_dim = 8,
                                 .intermediate_size = 64,
                                 .vocab_size = 64,
                                 .max_position_embeddings = 64,
                                 .rms_norm_eps = 1e-6,
                                 .rope_theta = 10000.0,
                                 .tie_word_embeddings = true,
                                 .dtype = DType::kFloat32,
                                 .eos_token_ids = {}};
  const MemoryPlan plan = plan_memory(config, model, std::nullopt, Device::cpu());
  ASSERT_EQ(plan.ranks.size(), 2048u);
  size_t master_bytes = 0;
  size_t least = std::numeric_limits<size_t>::max();
  size_t most = 0;
  for (const RankMemoryPlan& rank : plan.ranks) {
    const size_t bytes = rank.find("policy_training")->peak.by_owner.at("optimizer/master");
    master_bytes += bytes;
    least = std::min(least, bytes);
    most = std::max(most, bytes);
  }
  // Matrices once; norms and biases once a GTP rank, of which most hold nothing else.
  constexpr size_t kMatrices = 64 * 32 + 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32);
  constexpr size_t kVectors = 2 * (2 * 32 + 32 + 16 + 16) + 32;
  EXPECT_EQ(master_bytes, 4 * (kMatrices + 512 * kVectors));
  EXPECT_EQ(least, 4 * kVectors / 4);
  EXPECT_GT(most, least);
}

TEST(MemoryReport, TableNamesOwnersPhasesAndTheFullestRank) {
  const PhasePeak small{.bytes = 3 * kMiB, .by_owner = {{"kv_cache", 3 * kMiB}}, .workspace = {}};
  const PhasePeak large{.bytes = 5 * kMiB,
                        .by_owner = {{"kv_cache", kMiB}, {"policy/weights", 4 * kMiB}},
                        .workspace = {}};
  const MemoryPlan plan{.device = Device::cpu(),
                        .ranks = {{.phases = {{"setup", small}, {"policy_training", small}}},
                                  {.phases = {{"setup", small}, {"policy_training", large}}}}};
  EXPECT_EQ(plan.fullest_rank(), 1);
  EXPECT_EQ(plan.fullest_rank("setup"), 0);
  const std::string table = plan_table(plan);
  EXPECT_THAT(table, ::testing::ContainsRegex("by owner on rank 1"));
  EXPECT_THAT(table, ::testing::ContainsRegex("\nkv_cache +3.0 MiB +1.0 MiB\n"));
  EXPECT_THAT(table, ::testing::ContainsRegex("\npolicy/weights +- +4.0 MiB\n"));
  EXPECT_THAT(table, ::testing::ContainsRegex("which +rank 0 +rank 1"));
  EXPECT_EQ(biggest_owner(plan), "policy/weights (4.0 MiB)");
  const MeasuredMemory measured{.ranks = {{{kMiB, 0}, {kMiB, 0}}, {{3 * kMiB, 0}, {4 * kMiB, 0}}}};
  const std::string comparison = comparison_table(plan, measured);
  EXPECT_THAT(comparison, ::testing::ContainsRegex("policy_training +5.0 MiB +4.0 MiB +80.0% +1"));
}

}  // namespace
}  // namespace grpo::rl
