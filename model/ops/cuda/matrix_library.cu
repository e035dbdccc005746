// cuBLASLt's matrices are column-major: a row-major c = a b is computed as c^T = b^T a^T, so the
// library's first factor is b, and its "not transposed" is a row-major matrix read as its
// transpose.
#include "model/ops/matrix_library.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "model/core/device_cuda.h"
#include "model/ops/cuda/launch.cuh"

// The library is loaded, not linked: a machine without it runs on its CPU, and the others say what
// is missing in one line.
namespace {

struct LoadedLibrary {
  void* handle = nullptr;
  std::string problem;  // empty when the library can be used
};

#define GRPO_TEXT_OF(value) #value
#define GRPO_TEXT(value) GRPO_TEXT_OF(value)
constexpr const char* kLibraryFile = "libcublasLt.so." GRPO_TEXT(CUBLAS_VER_MAJOR);

LoadedLibrary load_library() {
  LoadedLibrary loaded;
  loaded.handle = dlopen(kLibraryFile, RTLD_NOW | RTLD_LOCAL);
  if (loaded.handle == nullptr) {
    const char* const reason = dlerror();
    loaded.problem = fmt::format("cuBLASLt cannot be loaded ({})", reason == nullptr ? "" : reason);
  }
  return loaded;
}

const LoadedLibrary& library() {
  static const LoadedLibrary loaded = load_library();
  return loaded;
}

template <typename Function>
Function* look_up(const char* name) {
  if (!library().problem.empty()) throw grpo::CudaError(library().problem);
  void* const address = dlsym(library().handle, name);
  if (address == nullptr) {
    throw grpo::CudaError(fmt::format("{} has no {}", kLibraryFile, name));
  }
  return reinterpret_cast<Function*>(address);
}

}  // namespace

// The functions that are used (cublasLt.h's own inline functions call the *_internal ones).
#define GRPO_FORWARD(Result, name, parameters, arguments)        \
  Result CUBLASWINAPI name parameters {                          \
    static const auto function = look_up<decltype(name)>(#name); \
    return function arguments;                                   \
  }
extern "C" {
GRPO_FORWARD(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle), (handle))
GRPO_FORWARD(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle), (handle))
GRPO_FORWARD(const char*, cublasLtGetStatusString, (cublasStatus_t status), (status))
GRPO_FORWARD(cublasStatus_t, cublasLtMatmul,
             (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha,
              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
              cudaStream_t stream),
             (handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
              algorithm, workspace, workspace_bytes, stream))
GRPO_FORWARD(cublasStatus_t, cublasLtMatrixLayoutInit_internal,
             (cublasLtMatrixLayout_t layout, size_t size, cudaDataType type, uint64_t rows,
              uint64_t columns, int64_t stride),
             (layout, size, type, rows, columns, stride))
GRPO_FORWARD(cublasStatus_t, cublasLtMatmulDescInit_internal,
             (cublasLtMatmulDesc_t operation, size_t size, cublasComputeType_t compute_type,
              cudaDataType_t scale_type),
             (operation, size, compute_type, scale_type))
GRPO_FORWARD(cublasStatus_t, cublasLtMatmulDescSetAttribute,
             (cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
              const void* value, size_t size),
             (operation, attribute, value, size))
GRPO_FORWARD(cublasStatus_t, cublasLtMatmulPreferenceInit_internal,
             (cublasLtMatmulPreference_t preference, size_t size), (preference, size))
GRPO_FORWARD(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
             (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
              const void* value, size_t size),
             (preference, attribute, value, size))
GRPO_FORWARD(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
             (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
              cublasLtMatmulPreference_t preference, int wanted,
              cublasLtMatmulHeuristicResult_t results[], int* count),
             (handle, operation, a, b, c, d, preference, wanted, results, count))
GRPO_FORWARD(cublasStatus_t, cublasLtMatmulAlgoCheck,
             (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
              const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* result),
             (handle, operation, a, b, c, d, algorithm, result))
GRPO_FORWARD(cublasStatus_t, cublasLtMatmulAlgoConfigGetAttribute,
             (const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute,
              void* value, size_t size, size_t* size_written),
             (algorithm, attribute, value, size, size_written))
}
#undef GRPO_FORWARD

namespace grpo {

namespace {

// As much scratch as the library asks for on this architecture.
constexpr size_t kMaxWorkspaceBytes = size_t{32} << 20;
constexpr size_t kWorkspaceAlignment = 256;
constexpr int kMaxCandidates = 32;
constexpr uint32_t kRowAlignmentBytes = 16;
// For fewer rows and a long k the heuristic of cuBLASLt 13.1 prefers, among kernels that do not
// split sums, those of an earlier generation: on an H200 at 16 to 128 rows of [4864] x [4864, 896]
// 106 to 118 us, against 26 us of the newer ones. Its choice for this many rows serves fewer, too.
constexpr int64_t kManyRows = 512;

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw CudaError(fmt::format("{} failed: {}", call, cublasLtGetStatusString(status)));
  }
}

#define CUBLAS_CHECK(call) check((call), #call)

cudaDataType_t library_type(DType dtype) {
  return dtype == DType::kFloat32 ? CUDA_R_32F : CUDA_R_16BF;
}

std::string shape_text(const MatrixProduct& p) {
  return fmt::format("[{}, {}] x [{}, {}] bfloat16 to {}{}", p.m, p.k, p.k, p.n,
                     dtype_name(p.c_dtype), p.bias == nullptr ? "" : " with bias");
}

// Descriptors of one product; opaque structs of the library that own nothing.
struct Descriptors {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, c;

  explicit Descriptors(const MatrixProduct& p) {
    CUBLAS_CHECK(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
    init(a, CUDA_R_16BF, p.b, p.n, p.k);
    init(b, CUDA_R_16BF, p.a, p.k, p.m);
    init(c, library_type(p.c_dtype), {p.c, p.c_stride, false}, p.n, p.m);
  }

 private:
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof(value)));
  }

  static void init(cublasLtMatrixLayoutOpaque_t& layout, cudaDataType_t type,
                   const StoredMatrix& matrix, int64_t rows, int64_t columns) {
    if (matrix.transposed) std::swap(rows, columns);
    CUBLAS_CHECK(cublasLtMatrixLayoutInit(&layout, type, static_cast<uint64_t>(rows),
                                          static_cast<uint64_t>(columns), matrix.stride));
  }
};

struct Plan {
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace_bytes;
};

template <typename T>
T algorithm_attribute(const cublasLtMatmulAlgo_t& algorithm,
                      cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value{};
  CUBLAS_CHECK(
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), nullptr));
  return value;
}

int32_t algorithm_id(const cublasLtMatmulAlgo_t& algorithm) {
  return algorithm_attribute<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_ID);
}

int32_t num_splits(const cublasLtMatmulAlgo_t& algorithm) {
  return algorithm_attribute<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
}

uint32_t reduction_scheme(const cublasLtMatmulAlgo_t& algorithm) {
  return algorithm_attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
}

bool is_exact_class(const cublasLtMatmulAlgo_t& algorithm) {
  return num_splits(algorithm) == 1 &&
         reduction_scheme(algorithm) == CUBLASLT_REDUCTION_SCHEME_NONE;
}

std::string algorithm_text(const cublasLtMatmulAlgo_t& algorithm) {
  return fmt::format(
      "algorithm {}, tile {}, stages {}, cluster {}, split-K {}, reduction scheme {}",
      algorithm_id(algorithm),
      algorithm_attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
      algorithm_attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
      algorithm_attribute<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID),
      num_splits(algorithm), reduction_scheme(algorithm));
}

// Everything that an algorithm is chosen by.
using PlanKey = std::tuple<int64_t, int64_t, int64_t, bool, bool, DType, bool, SplitK, bool>;

PlanKey plan_key(const MatrixProduct& p) {
  return {p.m,       p.n,          p.k,       p.a.transposed,   p.b.transposed,
          p.c_dtype, p.accumulate, p.split_k, p.bias != nullptr};
}

// The product that stands for all of a bucket when an algorithm is chosen.
MatrixProduct bucket_product(const MatrixProduct& product) {
  MatrixProduct bucket = product;
  int64_t& rows = product.sums_rows ? bucket.k : bucket.m;
  rows = row_bucket(rows);
  return bucket;
}

void check_aligned(const MatrixProduct& p) {
  const auto aligned = [&](const void* data, int64_t stride, DType dtype) {
    const auto stride_bytes = static_cast<size_t>(stride) * dtype_size_bytes(dtype);
    return reinterpret_cast<uintptr_t>(data) % kRowAlignmentBytes == 0 &&
           stride_bytes % kRowAlignmentBytes == 0;
  };
  CHECK(aligned(p.a.data, p.a.stride, DType::kBfloat16) &&
            aligned(p.b.data, p.b.stride, DType::kBfloat16) &&
            aligned(p.c, p.c_stride, p.c_dtype) && aligned(p.bias, 0, DType::kBfloat16),
        "{}: rows of {} are not aligned to {} bytes", p.op, shape_text(p), kRowAlignmentBytes);
}

}  // namespace

struct MatrixLibrary::State {
  Device device;
  cublasLtHandle_t handle = nullptr;
  std::map<PlanKey, Plan> plans;
  int candidate_rank = 0;
  const Plan* latest = nullptr;

  explicit State(Device on) : device(on) {
    check_cuda_device(device);  // selects it too: the handle belongs to the current one
    CUBLAS_CHECK(cublasLtCreate(&handle));
  }
  ~State() { cublasLtDestroy(handle); }

  const Plan& plan(const MatrixProduct& product) {
    const PlanKey key = plan_key(product);
    const auto found = plans.find(key);
    if (found != plans.end()) return found->second;
    return plans.emplace(key, choose(product)).first->second;
  }

  // Of the wanted class, best first; empty when the library has none.
  std::vector<Plan> candidates(const MatrixProduct& product) const;
  Plan choose(const MatrixProduct& product) const;
  // `best`, or the best for kManyRows where that is of another kind.
  Plan exact_plan(const MatrixProduct& product, const Plan& best) const;
};

namespace {

cublasLtMatmulPreferenceOpaque_t preference(SplitK split_k) {
  cublasLtMatmulPreferenceOpaque_t result;
  CUBLAS_CHECK(cublasLtMatmulPreferenceInit(&result));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(&result, attribute, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMaxWorkspaceBytes);
  // Where k may be split, only with the parts joined in a step of their own: in one order.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(split_k == SplitK::kNever ? CUBLASLT_REDUCTION_SCHEME_NONE
                                                      : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(attribute, kRowAlignmentBytes);
  }
  return result;
}

}  // namespace

std::vector<Plan> MatrixLibrary::State::candidates(const MatrixProduct& product) const {
  Descriptors d(product);
  cublasLtMatmulPreferenceOpaque_t wanted = preference(product.split_k);
  std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates> results;
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, &d.operation, &d.a, &d.b, &d.c, &d.c, &wanted,
                                     kMaxCandidates, results.data(), &count);
  if (status != CUBLAS_STATUS_SUCCESS) count = 0;
  std::vector<Plan> found;
  for (const auto& result : std::span(results).first(static_cast<size_t>(count))) {
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    if (product.split_k == SplitK::kNever && !is_exact_class(result.algo)) continue;
    found.push_back({result.algo, result.workspaceSize});
  }
  return found;
}

Plan MatrixLibrary::State::exact_plan(const MatrixProduct& product, const Plan& best) const {
  if (product.sums_rows || product.m >= kManyRows) return best;
  MatrixProduct more = product;
  more.m = kManyRows;
  const std::vector<Plan> found = candidates(more);
  if (found.empty() || algorithm_id(found[0].algorithm) == algorithm_id(best.algorithm)) {
    return best;
  }
  Descriptors d(product);
  cublasLtMatmulHeuristicResult_t checked{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle, &d.operation, &d.a, &d.b, &d.c,
                                                        &d.c, &found[0].algorithm, &checked);
  if (status != CUBLAS_STATUS_SUCCESS || checked.workspaceSize > kMaxWorkspaceBytes) return best;
  return {found[0].algorithm, checked.workspaceSize};
}

Plan MatrixLibrary::State::choose(const MatrixProduct& product) const {
  const std::vector<Plan> found = candidates(product);
  if (found.empty()) {
    throw CudaError(fmt::format("{}: cuBLASLt has no algorithm{} for {} on {}", product.op,
                                product.split_k == SplitK::kNever ? " without split-K" : "",
                                shape_text(product), device_name(device)));
  }
  auto best = found.begin() + std::min(candidate_rank, static_cast<int>(found.size()) - 1);
  if (product.split_k == SplitK::kForced) {
    const auto splits = [](const Plan& plan) { return num_splits(plan.algorithm) > 1; };
    const auto split = std::find_if(best, found.end(), splits);
    if (split != found.end()) best = split;
  }
  if (product.split_k == SplitK::kNever && candidate_rank == 0) return exact_plan(product, *best);
  return *best;
}

std::string why_no_matrix_library() { return library().problem; }

MatrixLibrary::MatrixLibrary(Device device)
    : state_(device.kind == DeviceKind::kCuda ? std::make_unique<State>(device) : nullptr) {}

MatrixLibrary::~MatrixLibrary() = default;

std::string MatrixLibrary::describe(const MatrixProduct& product) {
  return algorithm_text(state_->plan(bucket_product(product)).algorithm);
}

void MatrixLibrary::set_candidate_rank(int rank) {
  if (state_ == nullptr) return;
  state_->candidate_rank = rank;
  state_->plans.clear();
  state_->latest = nullptr;
}

std::string MatrixLibrary::describe_latest() const {
  if (state_ == nullptr || state_->latest == nullptr) return "";
  return algorithm_text(state_->latest->algorithm);
}

void MatrixLibrary::multiply(const MatrixProduct& product, OpContext& ctx) {
  CHECK(state_ != nullptr && state_->device == ctx.device, "{}: no matrix library of {}",
        product.op, device_name(ctx.device));
  CHECK(product.bias == nullptr || product.c_dtype == DType::kBfloat16);
  check_aligned(product);
  CUDA_CHECK(cudaSetDevice(ctx.device.index));
  Descriptors d(product);
  const auto run = [&](const Plan& plan) {
    state_->latest = &plan;
    const Workspace::Scope scope(ctx.workspace);
    const Tensor scratch = ctx.workspace.take(
        DType::kUint8, {static_cast<int64_t>(plan.workspace_bytes + kWorkspaceAlignment)});
    const auto address = reinterpret_cast<uintptr_t>(scratch.raw());
    const uintptr_t aligned =
        ops::cuda::ceil_div(static_cast<int64_t>(address), kWorkspaceAlignment) *
        kWorkspaceAlignment;
    const float one = 1.0f;
    const float beta = product.accumulate ? 1.0f : 0.0f;
    return cublasLtMatmul(state_->handle, &d.operation, &one, product.b.data, &d.a, product.a.data,
                          &d.b, &beta, product.c, &d.c, product.c, &d.c, &plan.algorithm,
                          reinterpret_cast<void*>(aligned), plan.workspace_bytes,
                          cuda_stream(ctx.stream));
  };
  cublasStatus_t status = run(state_->plan(bucket_product(product)));
  // An algorithm of the bucket that cannot take this very number of rows.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) status = run(state_->plan(product));
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw CudaError(fmt::format("{}: cublasLtMatmul of {} failed: {} ({})", product.op,
                                shape_text(product), cublasLtGetStatusString(status),
                                describe(product)));
  }
}

}  // namespace grpo
