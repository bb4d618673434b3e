#include "base/shape.h"

namespace braid {

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int axis = 0; axis < shape.rank(); ++axis) {
    text += fmt::format("{}{}", axis == 0 ? "" : ",", shape[axis]);
  }
  return text + "]";
}

}  // namespace braid
