// grpo_benchmark: times the phases of a run, and single operators, on random weights.
#include <cstdio>
#include <new>

#include "app/commands/version.h"
#include "app/text/printable_text.h"
#include "app/text/text_file.h"
#include "tools/benchmark/kernels.h"
#include "tools/benchmark/phases.h"

namespace grpo::benchmark {

namespace {

void print_error(const std::string& message) {
  const std::string line = fmt::format("grpo_benchmark: error: {}\n", app::escaped(message));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

Report describe(const Rig& rig) {
  const Options& options = rig.options();
  const model::ModelConfig& m = options.model;
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  Report report{
      .setting = {}, .ceilings = options.ceilings, .phases = {}, .kernels = {}, .products = {}};
  report.setting = {
      {"version", app::kVersion},
      {"device", rig.device_description()},
      {"model", options.model_name},
      {"sizes", fmt::format("{} layers, hidden {}, {} heads, {} key/value heads of {}, "
                            "intermediate {}, vocabulary {}",
                            m.num_layers, m.hidden_size, m.num_heads, m.num_kv_heads, m.head_dim,
                            m.intermediate_size, m.vocab_size)},
      {"precision", options.precision},
      {"numerics", options.fast ? "fast" : "exact"},
      {"sequence length", text(options.sequence_length)},
      {"context tokens", text(options.context_tokens)},
      {"head chunk rows", text(options.head_chunk_rows)},
      {"prompt tokens", text(options.prompt_tokens)},
      {"new tokens", text(options.new_tokens)},
      {"page size tokens", text(options.page_size_tokens)},
      {"prefill chunk tokens", text(options.prefill_chunk_tokens)},
      {"decode steps", options.enforce_eager ? "kernel by kernel" : "CUDA graphs on a GPU"},
      {"repeats", text(options.repeats)},
      {"ceilings", fmt::format("{:g} TFLOP/s, {:g} TB/s", options.ceilings.flops_per_second / 1e12,
                               options.ceilings.bytes_per_second / 1e12)}};
  return report;
}

void measure(Rig& rig, Report& report) {
  const auto add = [&](Part part, const char* what, auto&& measure_part) {
    if (!rig.options().parts.contains(part)) return;
    std::fprintf(stderr, "measuring %s\n", what);
    const std::vector<PhaseRow> rows = measure_part(rig);
    report.phases.insert(report.phases.end(), rows.begin(), rows.end());
  };
  add(Part::kTrain, "the training step", measure_training);
  add(Part::kScore, "scoring", measure_scoring);
  add(Part::kGenerate, "generation", measure_generation);
  add(Part::kRefit, "the refit", measure_refit);
  if (rig.options().kernels) {
    std::fprintf(stderr, "measuring operators\n");
    report.kernels = measure_kernels(rig);
  }
  if (rig.options().product_candidates > 0) {
    std::fprintf(stderr, "measuring products\n");
    report.products = measure_products(rig);
  }
}

void run(const Options& options) {
  Rig rig(options);
  Report report = describe(rig);
  const auto write = [&] {
    if (!options.json_path.empty()) app::write_whole_file(options.json_path, to_json(report));
    app::write_standard_output(to_markdown(report));
  };
  try {
    measure(rig, report);
  } catch (const Error&) {
    write();  // what was measured before
    throw;
  }
  write();
}

int run(int argc, char** argv) {
  try {
    if (const std::optional<Options> options = parse_options(argc, argv)) run(*options);
    return static_cast<int>(ExitCode::kDone);
  } catch (const Error& error) {
    print_error(error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::bad_alloc&) {
    print_error("out of host memory");
  } catch (const std::exception& error) {
    print_error(error.what());
  }
  return static_cast<int>(ExitCode::kOther);
}

}  // namespace

}  // namespace grpo::benchmark

int main(int argc, char** argv) { return grpo::benchmark::run(argc, argv); }
