#include "state/export_adapters.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "base/errors.h"
#include "hugging_face/tensor_folder.h"
#include "hugging_face/tensor_names.h"
#include "state/adapted_state.h"

namespace braid {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kWeightSuffix = ".weight";
constexpr std::string_view kPeftPrefix = "base_model.model.";

/// One of the two factors of a matrix in the file: consecutive rows of one of our parameters. Or
/// the lengths of the rows of a matrix in that parameter.
struct Factor {
  std::string name;
  Shape shape;
  std::string parameter;
  int64_t first_elem = 0;
  std::optional<AdaptedMatrix> lengths_of = {};
};

std::string module_of(const HfTensor& tensor) {
  return tensor.name.substr(0, tensor.name.size() - kWeightSuffix.size());
}

/// The adapted matrix that the tensor holds; null if it has no adapter.
const AdaptedMatrix* find_matrix(std::span<const AdaptedMatrix> matrices, const HfTensor& tensor) {
  const auto found = std::ranges::find_if(matrices, [&](const AdaptedMatrix& matrix) {
    return matrix.first_row == tensor.first_row && matrix.row_stride == tensor.row_stride;
  });
  return found == matrices.end() ? nullptr : &*found;
}

/// Whether the tensor holds an adapted matrix that is not all of it, or in another order.
bool is_joined(std::span<const AdaptedMatrix> matrices, const HfTensor& tensor) {
  return std::ranges::any_of(matrices, [&](const AdaptedMatrix& matrix) {
    const int64_t row = matrix.first_row - tensor.first_row;
    const bool is_inside = matrix.row_stride == tensor.row_stride && row >= 0 &&
                           row % tensor.row_stride == 0 &&
                           row / tensor.row_stride < tensor.num_rows();
    const bool is_all = row == 0 && matrix.num_rows == tensor.num_rows();
    return is_inside && (!is_all || tensor.transposed || tensor.whole.rank() > 0);
  });
}

struct AdapterFiles {
  std::vector<Factor> factors;
  std::set<std::string> targets;  ///< "q_proj"
};

AdapterFiles adapter_files(const ParameterLayout& layout, const ModelSpec& model) {
  AdapterFiles files;
  for (const HfTensor& tensor : hf_tensors(model)) {
    const Parameter& weight = layout.parameters[layout.slot(tensor.parameter).parameter];
    const std::vector<AdaptedMatrix> matrices = adapted_matrices(model.lora, weight);
    if (is_joined(matrices, tensor)) {
      throw_config_error(
          "--adapters: the matrices of a {} are not those of its Hugging Face class; leave the "
          "option out to write the merged model",
          hf_class(model).architecture);
    }
    const AdaptedMatrix* const matrix = find_matrix(matrices, tensor);
    if (matrix == nullptr) {
      continue;
    }
    const std::string module = module_of(tensor);
    const int64_t in = weight.shape[1];
    files.targets.insert(module.substr(module.rfind('.') + 1));
    files.factors.push_back({.name = fmt::format("{}{}.lora_A.weight", kPeftPrefix, module),
                             .shape = {model.lora.rank, in},
                             .parameter = matrix->a,
                             .first_elem = matrix->a_row * in});
    files.factors.push_back({.name = fmt::format("{}{}.lora_B.weight", kPeftPrefix, module),
                             .shape = {matrix->num_rows, model.lora.rank},
                             .parameter = matrix->b});
    if (!matrix->magnitude.empty()) {
      files.factors.push_back(
          {.name = fmt::format("{}{}.lora_magnitude_vector", kPeftPrefix, module),
           .shape = {matrix->num_rows},
           .parameter = weight.name,
           .lengths_of = *matrix});
    }
  }
  return files;
}

std::vector<float> values_of(const Factor& factor, const StateSource& state,
                             const ParameterLayout& layout, WorkerPool& workers) {
  return factor.lengths_of
             ? row_magnitudes(state, layout,
                              layout.parameters[layout.slot(factor.parameter).parameter],
                              *factor.lengths_of, workers)
             : read_weights(state, layout, factor.parameter, factor.first_elem,
                            factor.shape.num_elems(), workers);
}

/// Keys that peft 0.5 and later read; it has use_dora since 0.9.
std::string adapter_config(const LoraSpec& lora, const std::set<std::string>& targets,
                           const std::string& base) {
  ordered_json root = {{"peft_type", "LORA"},
                       {"task_type", "CAUSAL_LM"},
                       {"base_model_name_or_path", base},
                       {"r", lora.rank},
                       {"lora_alpha", lora.alpha},
                       {"lora_dropout", 0.0},
                       {"target_modules", targets},
                       {"bias", "none"},
                       {"fan_in_fan_out", false},
                       {"inference_mode", true},
                       {"modules_to_save", nullptr}};
  if (lora.magnitudes) {
    root["use_dora"] = true;
  }
  return root.dump(2) + "\n";
}

}  // namespace

ExportSummary export_adapters(const StateSource& state, const ParameterLayout& layout,
                              const ModelSpec& model, const std::string& base,
                              const std::string& folder, DType dtype) {
  check(dtype == DType::kF32 || dtype == DType::kBF16, "export as {}", dtype_name(dtype));
  const AdapterFiles files = adapter_files(layout, model);
  std::vector<TensorInfo> infos;
  for (const Factor& factor : files.factors) {
    infos.push_back({factor.name, dtype, factor.shape});
  }
  HfFolderWriter writer(folder, std::move(infos), std::numeric_limits<int64_t>::max(),
                        {.weights = "adapter_model", .config = "adapter_config.json"});
  WorkerPool workers(1);  // the file is slower than one core
  for (const Factor& factor : files.factors) {
    const std::vector<float> values = values_of(factor, state, layout, workers);
    if (dtype == DType::kF32) {
      writer.write(std::as_bytes(std::span(values)));
    } else {
      const std::vector<BFloat16> rounded(values.begin(), values.end());
      writer.write(std::as_bytes(std::span(rounded)));
    }
    writer.end_tensor();
  }
  writer.finish(adapter_config(model.lora, files.targets, base));
  return {.num_tensors = files.factors.size(),
          .num_files = writer.num_files(),
          .size_bytes = writer.size_bytes()};
}

}  // namespace braid
