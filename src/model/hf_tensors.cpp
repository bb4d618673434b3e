#include "model/hf_tensors.h"

#include <fmt/core.h>

#include <utility>

namespace braid {

void HfTensorList::enter(std::string theirs, std::string ours) {
  theirs_ = std::move(theirs);
  ours_ = std::move(ours);
}

void HfTensorList::add(std::string_view theirs, Shape shape, std::string_view ours,
                       int64_t first_row, int64_t row_stride) {
  list_.push_back({.name = fmt::format("{}{}", theirs_, theirs),
                   .shape = shape,
                   .parameter = fmt::format("{}{}", ours_, ours),
                   .first_row = first_row,
                   .row_stride = row_stride});
}

void HfTensorList::set_whole(const Shape& whole, int64_t theirs_row) {
  list_.back().whole = whole;
  list_.back().theirs_row = theirs_row;
}

void HfTensorList::add_conv1d(std::string_view theirs, int64_t in, int64_t out,
                              std::string_view ours) {
  add(fmt::format("{}.weight", theirs), {in, out}, fmt::format("{}.weight", ours));
  list_.back().transposed = true;
  add(fmt::format("{}.bias", theirs), {out}, fmt::format("{}.bias", ours));
}

void HfTensorList::add_norm(std::string_view theirs, const ModelSpec& spec, std::string_view ours) {
  add(fmt::format("{}.weight", theirs), {spec.width}, fmt::format("{}.weight", ours));
  if (spec.style.norm == NormKind::kLayerNorm) {
    add(fmt::format("{}.bias", theirs), {spec.width}, fmt::format("{}.bias", ours));
  }
}

}  // namespace braid
