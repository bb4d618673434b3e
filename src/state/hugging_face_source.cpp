#include "state/hugging_face_source.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "hugging_face/convert.h"
#include "state/unit_range.h"

namespace braid {
namespace {

constexpr std::string_view kGpt2Prefix = "transformer.";
constexpr std::string_view kHead = "lm_head.weight";

/// Finds a tensor by its name, or by the name in files that hold the model without its head.
std::optional<HfTensorFolder::Place> find_tensor(const HfTensorFolder& files,
                                                 std::string_view name) {
  const auto place = files.find(name);
  return !place && name.starts_with(kGpt2Prefix) ? files.find(name.substr(kGpt2Prefix.size()))
                                                 : place;
}

[[noreturn]] void refuse(const HfTensorFolder::Place& place, std::string_view reason) {
  throw_data_error("tensor {} of '{}': {}", quote(place.entry->name), place.file->path(), reason);
}

/// Reads elements [first, first + values.size()) of the tensor as it is in its file.
void read_elems(const HfTensorFolder::Place& place, int64_t first, std::span<float> values) {
  const DType dtype = place.entry->dtype;
  const size_t elem_bytes = dtype_bytes(dtype);
  SequentialReader reader =
      place.file->reader(*place.entry, first * static_cast<int64_t>(elem_bytes),
                         static_cast<int64_t>(values.size() * elem_bytes));
  while (!values.empty()) {
    const std::span<const std::byte> bytes = reader.next();
    const size_t count = bytes.size() / elem_bytes;
    widen(dtype, bytes, values.first(count));
    values = values.subspan(count);
  }
}

/// Reads elements [first, first + values.size()) of the transpose of what is in the file: our row
/// is its column. Memory: a row of the file.
void read_transposed(const HfTensor& tensor, const HfTensorFolder::Place& place, int64_t first,
                     std::span<float> values) {
  const int64_t columns = tensor.num_columns();
  const auto last = first + static_cast<int64_t>(values.size());
  const int64_t first_row = first / columns;
  std::vector<float> strip(static_cast<size_t>((last - 1) / columns - first_row + 1));
  for (int64_t column = 0; column < columns; ++column) {
    read_elems(place, column * tensor.num_rows() + first_row, strip);
    int64_t at = first_row * columns + column;
    for (const float value : strip) {
      if (at >= first && at < last) {
        values[static_cast<size_t>(at - first)] = value;
      }
      at += columns;
    }
  }
}

bool have_same_bytes(const HfTensorFolder::Place& a, const HfTensorFolder::Place& b) {
  SequentialReader reader_a = a.file->reader(*a.entry);
  SequentialReader reader_b = b.file->reader(*b.entry);
  while (true) {
    const std::span<const std::byte> bytes = reader_a.next();
    if (!std::ranges::equal(bytes, reader_b.next())) {
      return false;
    }
    if (bytes.empty()) {
      return true;
    }
  }
}

}  // namespace

HuggingFaceSource::HuggingFaceSource(const HfTensorFolder& files, const ParameterLayout& layout,
                                     const ModelSpec& model)
    : layout_(layout) {
  const std::vector<std::string> names = files.names();
  for (HfTensor& tensor : hf_tensors(model, experts_of_files(names))) {
    if (tensor.is_copy) {
      continue;
    }
    Part part = checked(files, std::move(tensor));
    parts_[part.tensor.parameter].push_back(std::move(part));
  }
  if (model.tied_embeddings) {
    check_tied_head(files);
  }
  check_nothing_else(files, model);
}

HuggingFaceSource::Part HuggingFaceSource::checked(const HfTensorFolder& files,
                                                   HfTensor tensor) const {
  const auto place = find_tensor(files, tensor.name);
  if (!place) {
    throw_data_error("'{}' has no tensor {}, which config.json asks for", files.folder(),
                     quote(tensor.name));
  }
  if (place->entry->shape != tensor.whole_shape()) {
    refuse(*place, fmt::format("its shape is {}, but config.json asks for {}",
                               to_string(place->entry->shape), to_string(tensor.whole_shape())));
  }
  if (!is_weight_dtype(place->entry->dtype)) {
    refuse(*place, fmt::format("its dtype is {}, but weights must be f32, bf16 or f16",
                               dtype_name(place->entry->dtype)));
  }
  return {.tensor = std::move(tensor), .place = *place};
}

/// Files may contain the output projection twice; then both must be the same.
void HuggingFaceSource::check_tied_head(const HfTensorFolder& files) const {
  const auto head = files.find(kHead);
  if (!head) {
    return;
  }
  const HfTensorFolder::Place& table = parts_.at("embedding.tokens").front().place;
  const bool same = head->entry->dtype == table.entry->dtype &&
                    head->entry->shape == table.entry->shape && have_same_bytes(*head, table);
  if (!same) {
    refuse(*head, fmt::format("it is not equal to {}, although config.json ties them",
                              quote(table.entry->name)));
  }
}

void HuggingFaceSource::check_nothing_else(const HfTensorFolder& files,
                                           const ModelSpec& model) const {
  std::set<std::string_view> known = {kHead};
  for (const auto& [parameter, parts] : parts_) {
    for (const Part& part : parts) {
      known.insert(part.place.entry->name);
    }
  }
  for (const std::string& name : files.names()) {
    if (!known.contains(name) && !is_hf_buffer(name) && !is_hf_prediction_layer(model, name)) {
      refuse(*files.find(name), "the model that config.json describes has no such tensor");
    }
  }
}

void HuggingFaceSource::read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
                             WorkerPool& workers) const {
  fill_unit_range(layout_, unit, begin, out, workers,
                  [&](const Parameter& parameter, int64_t first, std::span<float> values) {
                    if (part == StatePart::kWeights) {
                      fill(parameter, first, values);
                    }
                  });
}

/// Reads elements [first, first + values.size()) of a parameter; elements that no tensor has, which
/// are padding of the vocabulary, are unchanged.
void HuggingFaceSource::fill(const Parameter& parameter, int64_t first,
                             std::span<float> values) const {
  const int64_t last = first + static_cast<int64_t>(values.size());
  for (const Part& part : parts_.at(parameter.name)) {
    for_each_overlap(piece_range(part.tensor), part.tensor.pitch(), first, last,
                     [&](int64_t theirs, int64_t ours, int64_t count) {
                       const auto target = values.subspan(static_cast<size_t>(ours - first),
                                                          static_cast<size_t>(count));
                       if (part.tensor.transposed) {
                         read_transposed(part.tensor, part.place, theirs, target);
                       } else {
                         const int64_t rows = part.tensor.theirs_row * part.tensor.num_columns();
                         read_elems(part.place, rows + theirs, target);
                       }
                     });
  }
}

}  // namespace braid
