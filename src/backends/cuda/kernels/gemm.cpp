#include "backends/cuda/kernels/gemm.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "backends/cuda/algorithm_cache.h"
#include "backends/cuda/kernels/gemm_plan.h"
#include "base/errors.h"
#include "base/text.h"

namespace braid {
namespace {

constexpr int kMaxCandidates = 32;
constexpr uint32_t kRepeatableSchemes =
    CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF32:
      return CUDA_R_32F;
    default:
      throw_internal_error("no CUDA matrix product for {}", dtype_name(dtype));
  }
}

template <class T>
void set_attribute(cublasLtMatmulDescOpaque_t& desc, cublasLtMatmulDescAttributes_t attribute,
                   const T& value) {
  BRAID_CUDA_CHECK(cublasLtMatmulDescSetAttribute(&desc, attribute, &value, sizeof(value)));
}

template <class T>
void set_preference(cublasLtMatmulPreferenceOpaque_t& preference,
                    cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  BRAID_CUDA_CHECK(
      cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)));
}

/// Column-major, as stored: the dimensions are swapped back where the product uses the transpose.
/// Stride 0: dense.
cublasLtMatrixLayoutOpaque_t layout_of(DType dtype, bool transposed, int64_t rows, int64_t columns,
                                       int64_t stride = 0) {
  const int64_t stored_rows = transposed ? columns : rows;
  const int64_t stored_columns = transposed ? rows : columns;
  cublasLtMatrixLayoutOpaque_t layout;
  BRAID_CUDA_CHECK(cublasLtMatrixLayoutInit(
      &layout, cuda_type(dtype), static_cast<uint64_t>(stored_rows),
      static_cast<uint64_t>(stored_columns), stride == 0 ? stored_rows : stride));
  return layout;
}

bool is_repeatable(const cublasLtMatmulAlgo_t& algorithm) {
  uint32_t scheme = 0;
  size_t written = 0;
  BRAID_CUDA_CHECK(cublasLtMatmulAlgoConfigGetAttribute(
      &algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof(scheme), &written));
  return (scheme & ~kRepeatableSchemes) == 0;
}

// ---- what the cache holds: the algorithm's words in hexadecimal, opaque to us, then bytes of its
// workspace

std::string cache_key(const GemmProblem& p, const CudaContext& context) {
  cudaDeviceProp properties;
  BRAID_CUDA_CHECK(cudaGetDeviceProperties(&properties, context.device()));
  // "2": what was chosen before large products ran under their own steady load is chosen anew.
  return fmt::format("gemm 2 {}{} {}x{}x{} {} {}{}{}{}; {}, {} multiprocessors; cuBLASLt {}",
                     p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k,
                     dtype_name(p.input), dtype_name(p.output), p.has_bias ? " bias" : "",
                     p.accumulate ? " accumulate" : "",
                     p.stride_b != 0 ? fmt::format(" stride b {}", p.stride_b) : "",
                     properties.name, context.num_sms(), cublasLtGetVersion());
}

std::string to_text(const GemmAlgorithm& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm.algorithm.data) {
    text += fmt::format("{:016x} ", word);
  }
  return text + fmt::format("{:x}", algorithm.scratch_bytes);
}

std::optional<GemmAlgorithm> parse_algorithm(std::string_view text) {
  GemmAlgorithm result;
  std::array<uint64_t, std::size(result.algorithm.data) + 1> words{};
  const std::vector<std::string> pieces = split_text(text, ' ');
  if (pieces.size() != words.size()) {
    return std::nullopt;
  }
  for (size_t i = 0; i < words.size(); ++i) {
    const char* const end = pieces[i].data() + pieces[i].size();
    const auto [stop, error] = std::from_chars(pieces[i].data(), end, words[i], 16);
    if (error != std::errc() || stop != end) {
      return std::nullopt;
    }
  }
  std::copy_n(words.begin(), std::size(result.algorithm.data), result.algorithm.data);
  result.scratch_bytes = words.back();
  return result;
}

/// The remembered algorithm, if the library still accepts it for this plan.
std::optional<GemmAlgorithm> recall(const GemmPlan& plan, CudaContext& context,
                                    const std::string& key) {
  const auto text = context.algorithms().find(key);
  auto remembered = text ? parse_algorithm(*text) : std::nullopt;
  if (!remembered) {
    return std::nullopt;
  }
  cublasLtMatmulHeuristicResult_t result;
  GemmPlan copy = plan;
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(context.cublas_lt(), &copy.product, &copy.a, &copy.b, &copy.d,
                              &copy.d, &remembered->algorithm, &result);
  const bool fits = status == CUBLAS_STATUS_SUCCESS &&
                    result.workspaceSize <= remembered->scratch_bytes &&
                    remembered->scratch_bytes <= kMaxGemmScratchBytes;
  return fits ? remembered : std::nullopt;
}

void check_alignment(const GemmOperands& operands) {
  for (const void* pointer :
       {operands.a, operands.b, operands.bias, static_cast<const void*>(operands.d)}) {
    check(reinterpret_cast<uintptr_t>(pointer) % kGemmAlignment == 0,
          "operand {} of a matrix product is not {}-byte aligned", pointer, kGemmAlignment);
  }
}

}  // namespace

GemmPlan::GemmPlan(const GemmProblem& problem)
    : a(layout_of(problem.input, problem.transpose_a, problem.m, problem.k)),
      b(layout_of(problem.input, problem.transpose_b, problem.k, problem.n, problem.stride_b)),
      d(layout_of(problem.output, false, problem.m, problem.n)),
      beta(problem.accumulate ? 1.0f : 0.0f) {
  BRAID_CUDA_CHECK(cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set_attribute(product, CUBLASLT_MATMUL_DESC_TRANSA,
                problem.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set_attribute(product, CUBLASLT_MATMUL_DESC_TRANSB,
                problem.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (problem.has_bias) {
    set_attribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set_attribute(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(problem.output));
  }
}

std::vector<GemmAlgorithm> GemmPlan::candidates(cublasLtHandle_t handle) const {
  cublasLtMatmulPreferenceOpaque_t preference;
  BRAID_CUDA_CHECK(cublasLtMatmulPreferenceInit(&preference));
  set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMaxGemmScratchBytes);
  set_preference(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kRepeatableSchemes);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set_preference(preference, attribute, kGemmAlignment);
  }
  std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates> results;
  int found = 0;
  GemmPlan copy = *this;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, &copy.product, &copy.a, &copy.b, &copy.d, &copy.d,
                                     &preference, kMaxCandidates, results.data(), &found);
  check(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt finds no algorithm for a matrix product: {}",
        cublasLtGetStatusString(status));
  std::vector<GemmAlgorithm> list;
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS && is_repeatable(result.algo)) {
      list.push_back({.algorithm = result.algo, .scratch_bytes = result.workspaceSize});
    }
  }
  check(!list.empty(), "cuBLASLt has no repeatable algorithm for a matrix product");
  return list;
}

void GemmPlan::launch(cublasLtHandle_t handle, const GemmAlgorithm& algorithm,
                      const GemmOperands& operands) const {
  // A copy, because the pointer of the bias is part of the description.
  GemmPlan copy = *this;
  if (operands.bias != nullptr) {
    set_attribute(copy.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  }
  const float alpha = 1.0f;
  BRAID_CUDA_CHECK(cublasLtMatmul(handle, &copy.product, &alpha, operands.a, &copy.a, operands.b,
                                  &copy.b, &copy.beta, operands.d, &copy.d, operands.d, &copy.d,
                                  &algorithm.algorithm, operands.scratch, algorithm.scratch_bytes,
                                  operands.stream));
}

Gemm make_gemm(const GemmProblem& problem, CudaContext& context) {
  const GemmPlan plan(problem);
  const std::string key = cache_key(problem, context);
  auto chosen = recall(plan, context, key);
  if (!chosen) {
    chosen = fastest_algorithm(plan, problem, context.cublas_lt());
    context.algorithms().store(key, to_text(*chosen));
  }
  return {
      .launch =
          [plan, algorithm = *chosen, handle = context.cublas_lt()](const GemmOperands& operands) {
            check_alignment(operands);
            plan.launch(handle, algorithm, operands);
          },
      .scratch_bytes = chosen->scratch_bytes};
}

}  // namespace braid
