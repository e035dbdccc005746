// Files and values that are wrong, through the whole program: one line on stderr that says what,
// where and what is allowed, the right exit code, on one rank and on two.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <span>

#include "app/config/yaml_config_reader.h"
#include "model/files/model_config.h"
#include "model/files/safetensors.h"
#include "model/transformer_parameters.h"
#include "tests/app/program.h"
#include "tests/app/scratch_folder.h"

namespace grpo::app {
namespace {

using testing::ProgramRun;
using testing::run_program;
using testing::ScratchFolder;

constexpr const char* kTokenizer = GRPO_SOURCE_DIR "/configs/demo/tokenizer.model";

// The folder of a small model with weights, and data beside it.
class HostileInput : public ::testing::Test {
 protected:
  HostileInput() {
    folder_.write("data.jsonl", "{\"prompt\":\"1+2=\",\"answer\":\"3\"}\n");
    folder_.write("tokens.jsonl", "{\"tokens\":[1,2,3]}\n");
    folder_.write("model/config.json", "");
    write_model();
    folder_.write("c.yaml", config("model_name: " + path("model")));
  }

  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  std::string config(const std::string& policy, const std::string& more = "") const {
    return "policy:\n  " + policy + "\n  tokenizer: {name: " + kTokenizer +
           "}\n  max_total_sequence_length: 32\n  generation: {max_new_tokens: 4}\n"
           "data: {train: {path: " +
           path("data.jsonl") +
           "}}\nenv: {rewards: [{}]}\ngrpo: {max_num_steps: 1, num_prompts_per_step: 2}\n" +
           "logger: {log_dir: " + path("run") + "}\n" + more;
  }

  static model::ModelConfig sizes() {
    return {.hidden_size = 32,
            .num_layers = 1,
            .num_heads = 4,
            .num_kv_heads = 2,
            .head_dim = 8,
            .intermediate_size = 16,
            .vocab_size = 64,
            .max_position_embeddings = 32,
            .rms_norm_eps = 1e-6,
            .rope_theta = 1e4,
            .tie_word_embeddings = true,
            .dtype = DType::kFloat32,
            .eos_token_ids = {2}};
  }

  static std::vector<model::TensorInfo> tensors() {
    std::vector<model::TensorInfo> infos;
    for (const ParameterSpec& spec : model::make_transformer_parameters(sizes(), 0.0f).specs) {
      for (const LogicalTensor& part : spec.parts) {
        std::vector<int64_t> shape{part.rows};
        if (!part.is_vector) shape.push_back(part.cols);
        infos.push_back({.name = part.name, .dtype = DType::kFloat32, .shape = shape});
      }
    }
    return infos;
  }

  // All weights are `value`; `change` may add, drop or reshape tensors.
  void write_model(float value = 0.01f,
                   const std::function<void(std::vector<model::TensorInfo>&)>& change = {}) const {
    model::write_model_config(sizes(), path("model"));
    std::vector<model::TensorInfo> infos = tensors();
    if (change) change(infos);
    model::SafetensorsWriter writer(path("model/model.safetensors"), infos, {});
    for (const model::TensorInfo& info : infos) {
      const std::vector<float> values(static_cast<size_t>(info.num_elements()), value);
      writer.write(info.name, 0, std::as_bytes(std::span(values)).first(info.size_bytes()));
    }
    writer.commit();
  }

  void replace_in(const std::string& name, const std::string& what, const std::string& by) const {
    std::string text = folder_.read(name);
    const size_t at = text.find(what);
    ASSERT_NE(at, std::string::npos) << what;
    folder_.write(name, text.replace(at, what.size(), by));
  }

  ProgramRun score(const std::string& input) const {
    return run_program({"score", "--model", path("model"), "--input", input, "--output",
                        path("scores.jsonl"), "--nproc", "2"});
  }
  ProgramRun check(const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> words{"--config", path("c.yaml"), "--check"};
    words.insert(words.end(), overrides.begin(), overrides.end());
    return run_program(words);
  }

  static void expect_refusal(const ProgramRun& run, int exit_code, const std::string& message) {
    EXPECT_EQ(run.exit_code, exit_code) << run.err;
    EXPECT_NE(run.err.find(message), std::string::npos) << run.err;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }

  ScratchFolder folder_;
};

TEST_F(HostileInput, TheModelItselfIsGood) {
  const ProgramRun scored = score(path("tokens.jsonl"));
  EXPECT_EQ(scored.exit_code, 0) << scored.err;
  const ProgramRun checked = check();
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
}

TEST_F(HostileInput, WeightsOnTwoRanks) {
  const std::string weights = path("model/model.safetensors");
  write_model(std::numeric_limits<float>::quiet_NaN());
  expect_refusal(score(path("tokens.jsonl")), 3, "holds nan at row 0, column 0");
  write_model(0.0f, [](auto& infos) {
    infos.push_back({.name = "extra\nline", .dtype = DType::kFloat32, .shape = {1}});
  });
  expect_refusal(score(path("tokens.jsonl")), 3,
                 "tensor \"extra\\nline\" has no place in this model");
  write_model(0.0f, [](auto& infos) { infos.pop_back(); });
  expect_refusal(score(path("tokens.jsonl")), 3, "is missing");
  write_model(0.0f, [](auto& infos) { infos.front().shape.front() += 1; });
  expect_refusal(score(path("tokens.jsonl")), 3, "the model's config makes it [64, 32]");
  write_model();
  std::filesystem::resize_file(weights, std::filesystem::file_size(weights) - 1);
  expect_refusal(score(path("tokens.jsonl")), 3, "data_offsets end at");
  std::filesystem::remove(weights);
  expect_refusal(score(path("tokens.jsonl")), 3, "holds neither model.safetensors nor");
  std::filesystem::create_symlink(weights, weights);
  expect_refusal(score(path("tokens.jsonl")), 3, "Too many levels of symbolic links");
  EXPECT_FALSE(std::filesystem::exists(path("scores.jsonl")));
}

// Finite weights whose products are not: the run says where, and which weight is suspicious.
TEST_F(HostileInput, WeightsThatOverflowInTheRun) {
  write_model(1e18f);
  expect_refusal(run_program({"--config", path("c.yaml"), "--nproc", "2"}), 1,
                 "phase 'generation', step 1: ");
  const ProgramRun again = run_program({"--config", path("c.yaml"), "logger.overwrite=true"});
  EXPECT_NE(again.err.find("weights are finite, the largest is 1e+18 in 'model."),
            std::string::npos)
      << again.err;
}

// This program reads no F16: a tensor of it beside the model's is a wrong file like any other.
TEST_F(HostileInput, ASurplusTensorOfADtypeThatIsNotRead) {
  std::string file = folder_.read("model/model.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  const size_t data_bytes = file.size() - 8 - header_bytes;
  std::string header = file.substr(8, header_bytes);
  header = header.substr(0, header.rfind('}')) +
           fmt::format(R"(,"half":{{"dtype":"F16","shape":[2],"data_offsets":[{},{}]}}}})",
                       data_bytes, data_bytes + 4);
  header_bytes = header.size();
  const std::string length(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
  folder_.write("model/model.safetensors",
                length + header + file.substr(file.size() - data_bytes) + std::string(4, '\0'));
  expect_refusal(score(path("tokens.jsonl")), 3, "tensor \"half\" has no place in this model");
  expect_refusal(check(), 3, "tensor \"half\" has no place in this model");
}

// Opening a pipe that nobody writes to would hang, reading a device would not end.
TEST_F(HostileInput, OnlyRegularFilesAreRead) {
  const std::string pipe = path("pipe.json");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_refusal(score(pipe), 3, "pipe.json: is a pipe; allowed: a regular file");
  expect_refusal(score("/dev/stdin"), 3, "/dev/stdin: is a device; allowed: a regular file");
  expect_refusal(score("/dev/zero"), 3, "/dev/zero: is a device; allowed: a regular file");
  expect_refusal(score(folder_.path()), 3, ": is a folder; allowed: a regular file");
  expect_refusal(check({"data.train.path=" + pipe}), 3, "is a pipe");
  expect_refusal(check({"policy.tokenizer.name=" + pipe}), 3, "is a pipe");
  expect_refusal(run_program({"--config", pipe, "--nproc", "2"}), 2, "is a pipe");
  for (const char* name : {"model/config.json", "model/model.safetensors"}) {
    const std::string kept = folder_.read(name);
    std::filesystem::remove(path(name));
    std::filesystem::create_symlink(pipe, path(name));
    expect_refusal(score(path("tokens.jsonl")), 3, "is a pipe");
    std::filesystem::remove(path(name));
    folder_.write(name, kept);
  }
}

TEST_F(HostileInput, ConfigOfAModel) {
  const auto refused = [&](const std::string& what, const std::string& by,
                           const std::string& message) {
    SCOPED_TRACE(by);
    write_model();
    replace_in("model/config.json", what, by);
    expect_refusal(score(path("tokens.jsonl")), 3, "model/config.json: " + message);
    expect_refusal(check(), 3, "model/config.json: " + message);
  };
  refused("\"num_attention_heads\": 4", "\"num_attention_heads\": 0",
          "num_attention_heads is 0; 1 to");
  refused("\"hidden_size\": 32", "\"hidden_size\": -32", "hidden_size is -32; 1 to");
  refused("\"num_attention_heads\": 4", "\"num_attention_heads\": 3", "hidden_size is 32; ");
  refused("\"vocab_size\": 64", "\"vocab_size\": 9223372036854775807", "vocab_size is");
  refused("\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 1e-60",
          "rms_norm_eps is 1e-60; 1e-30 to 1");
  refused("Qwen2ForCausalLM", "LlamaForCausalLM", "architectures is \"LlamaForCausalLM\"");
}

TEST_F(HostileInput, CheckRefusesWhatTheRunWould) {
  const auto refused = [&](const std::vector<std::string>& overrides, int code,
                           const std::string& message) {
    SCOPED_TRACE(overrides.front());
    expect_refusal(check(overrides), code, message);
  };
  refused({"policy.max_total_sequence_length=33"}, 2,
          "override policy.max_total_sequence_length=33: policy.max_total_sequence_length is 33; "
          "allowed: at most "
          "the model's max_position_embeddings, 32");
  refused({"policy.generation.stop_token_ids=[64]"}, 2,
          "holds 64; allowed: ids below the vocabulary's size, 64");
  refused({"policy.tokenizer.name=''"}, 2,
          "policy.tokenizer.name is empty; allowed: a SentencePiece");
  refused({"policy.tokenizer.name=" + path("none.model")}, 3,
          "none.model: No such file or directory");
  refused({"policy.tokenizer.name=" + path("data.jsonl")}, 3,
          "data.jsonl: not a SentencePiece model");
  refused({"data.train.path=" + path("none.jsonl")}, 3, "none.jsonl: No such file or directory");
  refused({"policy.model_name=" + path("none")}, 2,
          "none', which is no folder; allowed: a Hugging Face directory");
  refused({"policy.generation.max_new_tokens=31"}, 3, "data.jsonl:1: the prompt has");
  refused(
      {"warm_start.num_steps=1", "data.train.response_template={answer}{answer}{answer}{answer}",
       "policy.generation.max_new_tokens=1",
       "data.train.prompt_template={prompt}{prompt}{prompt}{prompt}{prompt}{prompt}{prompt}"},
      3,
      "data.jsonl:1: the example has 33 tokens with its response and end token; allowed: "
      "policy.max_total_sequence_length, 32");
  folder_.write(
      "c.yaml",
      config("model_name: custom\n  model: {vocab_size: 8, max_position_embeddings: 32}"));
  refused({"grpo.seed=1"}, 2,
          fmt::format("c.yaml:4:15: policy.tokenizer.name is '{}' with 14 entries; allowed: at "
                      "most the model's "
                      "vocab_size, 8",
                      kTokenizer));
  // Not of the sizes, which such a name would leave unread.
  folder_.write("c.yaml", config("model_name: " + path("none") + "\n  model: {vocab_size: 8}"));
  refused({"grpo.seed=1"}, 2, "none', which is no folder; allowed: a Hugging Face directory");
  folder_.write("c.yaml", config("model_name: " + path("model"),
                                 "gates:\n  - {metric: train/los, max: 1}\n"));
  refused({"grpo.seed=1"}, 2,
          "c.yaml:11:6: gates.0.metric is 'train/los', which this run does not have; nearest: "
          "train/loss");
}

TEST_F(HostileInput, TheRunSaysWhereAKeyStandsThatItRefuses) {
  folder_.write("c.yaml",
                config("model_name: " + path("model"), "")
                    .replace(config("model_name: " + path("model"), "").find(": 32"), 4, ": 33"));
  expect_refusal(run_program({"--config", path("c.yaml"), "--nproc", "2"}), 2,
                 "c.yaml:4:3: policy.max_total_sequence_length is 33; allowed: at most");
}

TEST_F(HostileInput, LinesOfTokens) {
  const auto refused = [&](const std::string& lines, const std::string& message) {
    SCOPED_TRACE(lines);
    expect_refusal(score(folder_.write("in.jsonl", lines)), 3, "in.jsonl" + message);
  };
  refused("{\"tokens\":[1]}\n{\"tokens\":[64]}\n",
          ":2: \"tokens\" holds 64; allowed: whole numbers from 0 to 63");
  refused("{\"tokens\":[1]}\n{\"tokens\":[1]", ":2: the line: not valid JSON");
  refused("{\"text\":\"\xC3(\"}\n", ":1: ");
  refused("", ": no line holds a JSON object");
  refused("{\"tokens\":[]}\n", ":1: the line holds no token");
}

TEST_F(HostileInput, NamesCannotSplitAMessage) {
  const std::string name = path("no\nsuch\x1b[31m\xFF");
  expect_refusal(score(name), 3, "no\\nsuch\\x1b[31m\\xff: No such file or directory");
  expect_refusal(run_program({"--config", name}), 2,
                 "no\\nsuch\\x1b[31m\\xff: No such file or directory");
  expect_refusal(run_program({"--config", path("c.yaml"), "--nproc", "a\nb"}), 2, "a\\nb");
  expect_refusal(check({"data.train.path=\"a\\0b\""}), 2, "allowed: text without a zero byte");
}

TEST_F(HostileInput, EmptyNames) {
  for (const char* option : {"--model", "--input", "--output"}) {
    std::vector<std::string> words{"score", "--model", "m", "--input", "i", "--output", "o"};
    *(std::find(words.begin(), words.end(), option) + 1) = "";
    expect_refusal(run_program(words), 2,
                   std::string(option) + ": the name is empty; allowed: a path");
  }
  expect_refusal(run_program({"--config", ""}), 2, "--config: the name is empty; allowed: a path");
}

TEST_F(HostileInput, OutputThatNobodyTakesIsAnError) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--help"},
                                                {"--version"},
                                                {"--print-config-reference"},
                                                {"--config", path("c.yaml"), "--check"}}) {
    SCOPED_TRACE(words.front());
    expect_refusal(run_program(words, "/dev/full"), 3,
                   "standard output: cannot be written: No space left on device");
  }
}

}  // namespace
}  // namespace grpo::app
