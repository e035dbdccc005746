// MatrixLibrary: bfloat16 matrix products of a CUDA device through cuBLASLt, and the algorithms
// chosen for them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/core/dtype.h"
#include "model/ops/op_context.h"

namespace grpo {

// A row-major bfloat16 matrix in device memory, as it is stored: rows begin at multiples of 16
// bytes.
struct StoredMatrix {
  const void* data;
  int64_t stride;   // elements from row to row
  bool transposed;  // the factor is this matrix's transpose
};

// c [m, n] = a [m, k] b [k, n] (+ c), row-major, summed in float32 and rounded once.
struct MatrixProduct {
  const char* op;  // for messages
  int64_t m, n, k;
  StoredMatrix a;
  StoredMatrix b;
  void* c;
  DType c_dtype;     // float32 or bfloat16
  int64_t c_stride;  // elements
  bool accumulate;
  const void* bias;  // [n] bfloat16, aligned to 16 bytes, added before the rounding of a bfloat16
                     // c; or null
  bool sums_rows;    // k counts rows of activations, not m: algorithms are chosen for its bucket
  SplitK split_k;    // kNever: a row's bits do not depend on m (numerics contract 1)
};

// Row counts share algorithms in buckets: the next of 16, 24, 32, 48, 64, 96, 128, 192, 256, ...
constexpr int64_t row_bucket(int64_t num_rows) {
  int64_t power = 16;
  while (power < num_rows) power *= 2;
  const int64_t between = power / 4 * 3;
  return power > 16 && between >= num_rows ? between : power;
}

// Why this machine's cuBLASLt cannot be used, in a build with CUDA; empty when it can. Thread-safe.
std::string why_no_matrix_library();

// One per rank, beside its workspace, for one device; on the CPU it holds nothing. Not thread-safe.
// Algorithms come from the library's heuristic, never from timings, and stay the same for the
// object's life: the same library on the same kind of device always computes the same bits.
class MatrixLibrary {
 public:
  // Throws CudaError when the library does not start, or in a build without CUDA.
  explicit MatrixLibrary(Device device);
  ~MatrixLibrary();
  MatrixLibrary(const MatrixLibrary&) = delete;
  MatrixLibrary& operator=(const MatrixLibrary&) = delete;

  // In stream order. Throws CudaError that names the shape when the library has no algorithm (of
  // the exact class, where that is asked for).
  void multiply(const MatrixProduct& product, OpContext& ctx);

  // The algorithm for a product, for messages: "algorithm 66, tile 20, stages 36, ...".
  std::string describe(const MatrixProduct& product);

  // For measurements alone: products take the heuristic's candidate of this rank (0, the best, is
  // the default), or the last there is. What was chosen before is forgotten.
  void set_candidate_rank(int rank);
  // The algorithm of the latest product; "" on the CPU.
  std::string describe_latest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace grpo
