// The figures of a benchmark as Markdown tables and as JSON.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/benchmark/work.h"

namespace grpo::benchmark {

// One measured phase. Shares are of the row's own time: floor / time.
struct PhaseRow {
  std::string section;  // "training step", "generation, 64 prompts x 8"
  std::string phase;    // "all" first, then its parts
  double seconds;
  std::optional<double> tokens;  // that the time was spent on
  std::optional<double> floor_seconds;
  std::optional<size_t> peak_bytes;  // of device memory, most in use at once
};

// An operator at a shape of the training step.
struct KernelRow {
  OperatorWork operation;  // calls are those of one optimizer step
  double seconds;          // a call
};

// A product under one of the matrix library's algorithms.
struct ProductRow {
  OperatorWork operation;
  int rank;  // in the library's order; 0 is what a run takes
  double seconds;
  std::string algorithm;
};

struct Report {
  std::vector<std::pair<std::string, std::string>> setting;  // name, value; in order
  Ceilings ceilings;
  std::vector<PhaseRow> phases;
  std::vector<KernelRow> kernels;
  std::vector<ProductRow> products;
};

// Kernels are sorted by their time in a step, most first.
void sort_kernels(std::vector<KernelRow>& kernels);

std::string to_markdown(const Report& report);
std::string to_json(const Report& report);

}  // namespace grpo::benchmark
