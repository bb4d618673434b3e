#include "state/export_weights.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "hugging_face/model_config.h"
#include "hugging_face/tensor_folder.h"
#include "hugging_face/tensor_names.h"
#include "state/state_transfer.h"

namespace braid {
namespace {

class WeightExport {
 public:
  WeightExport(const StateSource& state, const ParameterLayout& layout, DType dtype,
               HfFolderWriter& writer)
      : state_(state), layout_(layout), dtype_(dtype), writer_(writer) {}

  /// The next rows of the current tensor.
  void write(const HfTensor& tensor) {
    const int64_t num_elems = tensor.shape.num_elems();
    const int64_t piece_elems = tensor.transposed ? num_elems : kStatePieceElems;
    for (int64_t begin = 0; begin < num_elems; begin += piece_elems) {
      read(tensor, begin, std::min(piece_elems, num_elems - begin));
      if (tensor.transposed) {
        transpose(tensor);
      }
      write_values();
    }
  }

 private:
  /// Reads elements [begin, begin + count) of our rows of the tensor.
  void read(const HfTensor& tensor, int64_t begin, int64_t count) {
    values_.resize(static_cast<size_t>(count));
    const ParameterSlot& slot = layout_.slot(tensor.parameter);
    const PieceRange range = piece_range(tensor);
    for (int64_t done = 0; done < count;) {
      const int64_t run = (begin + done) / range.run_elems;
      const int64_t of_run = (begin + done) % range.run_elems;
      const int64_t step = std::min(range.run_elems - of_run, count - done);
      state_.read(StatePart::kWeights, slot.unit,
                  slot.begin + range.begin + run * tensor.pitch() + of_run,
                  std::span(values_).subspan(static_cast<size_t>(done), static_cast<size_t>(step)),
                  workers_);
      done += step;
    }
  }

  void transpose(const HfTensor& tensor) {
    const auto rows = static_cast<size_t>(tensor.num_rows());
    const auto columns = static_cast<size_t>(tensor.num_columns());
    std::vector<float> turned(values_.size());
    for (size_t row = 0; row < rows; ++row) {
      for (size_t column = 0; column < columns; ++column) {
        turned[column * rows + row] = values_[row * columns + column];
      }
    }
    values_ = std::move(turned);
  }

  void write_values() {
    if (dtype_ == DType::kF32) {
      writer_.write(std::as_bytes(std::span(values_)));
      return;
    }
    rounded_.assign(values_.begin(), values_.end());
    writer_.write(std::as_bytes(std::span(rounded_)));
  }

  const StateSource& state_;
  const ParameterLayout& layout_;
  DType dtype_;
  HfFolderWriter& writer_;
  WorkerPool workers_{1};  // the file is slower than one core
  std::vector<float> values_;
  std::vector<BFloat16> rounded_;
};

}  // namespace

ExportSummary export_weights(const StateSource& state, const ParameterLayout& layout,
                             const ModelSpec& model, const std::string& folder,
                             const ExportOptions& options) {
  check(options.dtype == DType::kF32 || options.dtype == DType::kBF16, "export as {}",
        dtype_name(options.dtype));
  const std::vector<HfTensor> tensors = hf_tensors(model, options.experts);
  std::vector<TensorInfo> infos;
  for (const HfTensor& tensor : tensors) {
    if (infos.empty() || infos.back().name != tensor.name) {
      infos.push_back({tensor.name, options.dtype, tensor.whole_shape()});
    }
  }
  const size_t num_tensors = infos.size();
  HfFolderWriter writer(folder, std::move(infos), options.max_shard_bytes);
  WeightExport writing(state, layout, options.dtype, writer);
  for (size_t i = 0; i < tensors.size(); ++i) {
    writing.write(tensors[i]);
    if (i + 1 == tensors.size() || tensors[i + 1].name != tensors[i].name) {
      writer.end_tensor();
    }
  }
  writer.finish(print_hf_config(model, options.dtype, options.companions), options.companions);
  return {.num_tensors = num_tensors,
          .num_files = writer.num_files(),
          .size_bytes = writer.size_bytes()};
}

}  // namespace braid
