#include "backends/cuda/kernels/gemm.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "backends/cuda/kernels/fastest_kernel.h"
#include "backends/cuda/kernels/gemm_plan.h"
#include "backends/cuda/kernels/gemm_sm90.h"
#include "backends/cuda/kernels/sm90_products.h"
#include "base/errors.h"
#include "base/text.h"
#include "ops/quantize.h"

namespace braid {
namespace {

constexpr int kMaxCandidates = 32;
constexpr std::string_view kSm90Prefix = "sm90 ";  ///< of names of kernels that are not cuBLASLt's
constexpr uint32_t kRepeatableSchemes =
    CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kF8E4M3:
      return CUDA_R_8F_E4M3;
    case DType::kF8E5M2:
      return CUDA_R_8F_E5M2;
    default:
      throw_internal_error("no CUDA matrix product for {}", dtype_name(dtype));
  }
}

int32_t scale_mode(GemmScales scales) {
  switch (scales) {
    case GemmScales::kNone:
    case GemmScales::kOne:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    case GemmScales::kRuns:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case GemmScales::kSquares:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  }
  throw_internal_error("scales {} of a matrix product", static_cast<int>(scales));
}

std::string_view scales_name(GemmScales scales) {
  constexpr std::array<std::string_view, 4> kNames = {"none", "one", "runs", "squares"};
  return kNames.at(static_cast<size_t>(scales));
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

/// Sets how factors are scaled. The heuristic gets pointers too, because it may look at their
/// alignment; it does not read what they point to.
void set_scales(cublasLtMatmulDescOpaque_t& desc, const GemmProblem& problem) {
  static const auto* const kAligned = reinterpret_cast<const void*>(uintptr_t{256});
  set_attribute(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(problem.scales_a));
  set_attribute(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(problem.scales_b));
  set_attribute(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, kAligned);
  set_attribute(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, kAligned);
  set_attribute(desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(problem.fast_sums));
}

/// Column-major, as stored: rows and columns are swapped if the product uses the transpose. Stride
/// 0: dense.
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

// ---- the format of cached choices: a name of gemm_sm90.h, or the words of cuBLASLt's algorithm in
// hexadecimal, opaque to us, then bytes of its workspace

/// What distinguishes products of FP8 factors; empty for others.
std::string scales_text(const GemmProblem& p) {
  return p.has_scales() ? fmt::format(" times {}, scales {} {}{}", dtype_name(p.type_of_b()),
                                      scales_name(p.scales_a), scales_name(p.scales_b),
                                      p.fast_sums ? ", fast sums" : "")
                        : "";
}

std::string used_sms_text(const CudaContext& context) {
  const int used = context.plain_product_sms();
  return used == 0 ? "" : fmt::format(", {} of them used", used);
}

std::string cache_key(const GemmProblem& p, const CudaContext& context) {
  // "2" invalidates choices made before large products were timed under their own steady load.
  return fmt::format(
      "gemm 2 {}{} {}x{}x{} {} {}{}{}{}{}; {}{}; cuBLASLt {}{}", p.transpose_a ? 'T' : 'N',
      p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, dtype_name(p.input), dtype_name(p.output),
      p.has_bias ? " bias" : "", p.accumulate ? " accumulate" : "",
      p.stride_b != 0 ? fmt::format(" stride b {}", p.stride_b) : "", scales_text(p),
      device_text(context), used_sms_text(context), cublasLtGetVersion(),
      gemm_sm90_names(p).empty() ? "" : fmt::format("; sm90 kernels {}", sm90_products_version()));
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
std::optional<GemmAlgorithm> accepted_algorithm(const GemmPlan& plan, cublasLtHandle_t handle,
                                                std::string_view text) {
  auto remembered = parse_algorithm(text);
  if (!remembered) {
    return std::nullopt;
  }
  cublasLtMatmulHeuristicResult_t result;
  GemmPlan copy = plan;
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(
      handle, &copy.product, &copy.a, &copy.b, &copy.d, &copy.d, &remembered->algorithm, &result);
  const bool fits = status == CUBLAS_STATUS_SUCCESS &&
                    result.workspaceSize <= remembered->scratch_bytes &&
                    remembered->scratch_bytes <= kMaxGemmScratchBytes;
  return fits ? remembered : std::nullopt;
}

void check_alignment(std::span<std::byte* const> operands) {
  for (const std::byte* const pointer : operands) {
    check(reinterpret_cast<uintptr_t>(pointer) % kGemmAlignment == 0,
          "operand {} of a matrix product is not {}-byte aligned",
          static_cast<const void*>(pointer), kGemmAlignment);
  }
}

GemmOperands operands_of(const CudaKernelArgs& args, bool has_scales, bool has_bias) {
  size_t next = 0;
  const auto take = [&](bool exists) { return exists ? args.operands[next++] : nullptr; };
  GemmOperands operands{.scratch = args.scratch, .stream = args.stream};
  operands.a = take(true);
  operands.scales_a = take(has_scales);
  operands.b = take(true);
  operands.scales_b = take(has_scales);
  operands.bias = take(has_bias);
  operands.d = args.operands[next];
  return operands;
}

CudaKernel gemm_kernel(const GemmPlan& plan, const GemmProblem& problem, cublasLtHandle_t handle,
                       const GemmAlgorithm& algorithm) {
  return {.launch =
              [=, has_scales = problem.has_scales(),
               has_bias = problem.has_bias](const CudaKernelArgs& args) {
                check_alignment(args.operands);
                plan.launch(handle, algorithm, operands_of(args, has_scales, has_bias));
              },
          .scratch_bytes = algorithm.scratch_bytes};
}

std::optional<CudaKernel> recall(const GemmProblem& problem, CudaContext& context,
                                 std::string_view name) {
  if (name.starts_with(kSm90Prefix)) {
    name.remove_prefix(kSm90Prefix.size());
    const std::vector<std::string> names = gemm_sm90_names(problem);
    return std::find(names.begin(), names.end(), name) != names.end()
               ? std::optional(make_gemm_sm90(problem, name, context))
               : std::nullopt;
  }
  const GemmPlan plan(problem, context.plain_product_sms());
  const auto algorithm = accepted_algorithm(plan, context.cublas_lt(), name);
  return algorithm ? std::optional(gemm_kernel(plan, problem, context.cublas_lt(), *algorithm))
                   : std::nullopt;
}

int64_t scale_elems(GemmScales scales, int64_t rows, int64_t k) {
  if (scales == GemmScales::kNone || scales == GemmScales::kOne) {
    return scales == GemmScales::kNone ? 0 : 1;
  }
  const bool square = scales == GemmScales::kSquares;
  return ScaleLayout{.block = 128, .square = square}.shape({rows, k}).num_elems();
}

TimedWork timed_work(const GemmProblem& p) {
  const int64_t columns_of_b = p.transpose_b ? p.k : p.n;
  const int64_t b_elems = p.stride_b == 0 ? p.k * p.n : p.stride_b * columns_of_b;
  TimedWork work{.flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) *
                          static_cast<double>(p.k)};
  const auto add = [&](int64_t elems, DType dtype) {
    if (elems > 0) {
      work.operands.push_back({elems, dtype});
    }
  };
  add(p.m * p.k, p.input);
  add(scale_elems(p.scales_a, p.m, p.k), DType::kF32);
  add(b_elems, p.type_of_b());
  add(scale_elems(p.scales_b, p.n, p.k), DType::kF32);
  add(p.has_bias ? p.m : 0, p.output);
  add(p.m * p.n, p.output);
  return work;
}

}  // namespace

GemmPlan::GemmPlan(const GemmProblem& problem, int sms)
    : a(layout_of(problem.input, problem.transpose_a, problem.m, problem.k)),
      b(layout_of(problem.type_of_b(), problem.transpose_b, problem.k, problem.n,
                  problem.stride_b)),
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
  if (problem.has_scales()) {
    set_scales(product, problem);
  }
  if (sms > 0) {
    set_attribute(product, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, sms);
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
  // A copy, because pointers of scales and bias are part of the description.
  GemmPlan copy = *this;
  if (operands.bias != nullptr) {
    set_attribute(copy.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  }
  if (operands.scales_a != nullptr) {
    set_attribute(copy.product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.scales_a);
    set_attribute(copy.product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.scales_b);
  }
  const float alpha = 1.0f;
  BRAID_CUDA_CHECK(cublasLtMatmul(handle, &copy.product, &alpha, operands.a, &copy.a, operands.b,
                                  &copy.b, &copy.beta, operands.d, &copy.d, operands.d, &copy.d,
                                  &algorithm.algorithm, operands.scratch, algorithm.scratch_bytes,
                                  operands.stream));
}

std::vector<NamedKernel> gemm_candidates(const GemmProblem& problem, CudaContext& context) {
  const GemmPlan plan(problem, context.plain_product_sms());
  std::vector<NamedKernel> list;
  for (const GemmAlgorithm& algorithm : plan.candidates(context.cublas_lt())) {
    list.push_back({.name = to_text(algorithm),
                    .kernel = gemm_kernel(plan, problem, context.cublas_lt(), algorithm)});
  }
  for (const std::string& name : gemm_sm90_names(problem)) {
    list.push_back({.name = fmt::format("{}{}", kSm90Prefix, name),
                    .kernel = make_gemm_sm90(problem, name, context)});
  }
  return list;
}

CudaKernel make_gemm(const GemmProblem& problem, CudaContext& context) {
  return fastest_kernel(
      {.key = cache_key(problem, context),
       .work = timed_work(problem),
       .candidates = [&] { return gemm_candidates(problem, context); },
       .recall = [&](std::string_view name) { return recall(problem, context, name); }},
      context);
}

}  // namespace braid
