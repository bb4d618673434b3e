#include "runtime/checkpointing.h"

#include <cstring>
#include <utility>
#include <vector>

namespace braid {
namespace {

/// The parameter's shape without padding rows.
Shape stored_shape(const Parameter& parameter, const ModelSpec& model) {
  Shape shape = parameter.shape;
  if (parameter.vocabulary_rows) {
    shape[0] = model.vocabulary;
  }
  return shape;
}

/// Every stored tensor of one part of the state: parameter, its name in the file, its elements in
/// the state.
template <class Visit>
void for_each_tensor(const ParameterLayout& layout, const ModelSpec& model,
                     std::vector<std::vector<float>>& part, std::string_view suffix,
                     const Visit& visit) {
  for (const Parameter& parameter : layout.parameters) {
    const Shape shape = stored_shape(parameter, model);
    const std::span<float> elements = elements_of(layout, parameter.name, part);
    visit(fmt::format("{}{}", parameter.name, suffix), shape,
          elements.first(static_cast<size_t>(shape.num_elems())));
  }
}

std::vector<NamedTensor> tensors_of(const ParameterLayout& layout, const ModelSpec& model,
                                    std::vector<std::vector<float>>& part,
                                    std::string_view suffix) {
  std::vector<NamedTensor> tensors;
  for_each_tensor(layout, model, part, suffix,
                  [&](std::string name, const Shape& shape, std::span<float> elements) {
                    tensors.push_back({.name = std::move(name),
                                       .dtype = DType::kF32,
                                       .shape = shape,
                                       .data = std::as_bytes(elements)});
                  });
  return tensors;
}

void read_part(const SafetensorsFile& file, const ParameterLayout& layout, const ModelSpec& model,
               std::vector<std::vector<float>>& part, std::string_view suffix) {
  for_each_tensor(layout, model, part, suffix,
                  [&](const std::string& name, const Shape& shape, std::span<float> elements) {
                    const std::span<const std::byte> bytes = file.tensor(name, DType::kF32, shape);
                    std::memcpy(elements.data(), bytes.data(), bytes.size());
                  });
}

}  // namespace

std::string save_model_state(const std::string& folder, const CheckpointState& progress,
                             const ParameterLayout& layout, const ModelSpec& model,
                             ModelState& state, int64_t keep) {
  const std::vector<NamedTensor> weights = tensors_of(layout, model, state.weights, "");
  std::vector<NamedTensor> optimizer = tensors_of(layout, model, state.exp_avg, ".exp_avg");
  for (NamedTensor& tensor : tensors_of(layout, model, state.exp_avg_sq, ".exp_avg_sq")) {
    optimizer.push_back(std::move(tensor));
  }
  return save_checkpoint(folder, progress, weights, optimizer, {.keep = keep});
}

ModelState load_model_state(const LoadedCheckpoint& checkpoint, const ParameterLayout& layout,
                            const ModelSpec& model) {
  ModelState state = empty_state(layout);
  read_part(checkpoint.weights(), layout, model, state.weights, "");
  read_part(checkpoint.optimizer(), layout, model, state.exp_avg, ".exp_avg");
  read_part(checkpoint.optimizer(), layout, model, state.exp_avg_sq, ".exp_avg_sq");
  return state;
}

}  // namespace braid
