#pragma once

#include "base/dtype.h"

namespace braid {

/// A main weight, f32, that is read as the bf16 weight that it would be.
struct MainWeight {
  float value = 0.0F;

  operator float() const {  // NOLINT(google-explicit-constructor): as of BFloat16
    return BFloat16(value);
  }
};
static_assert(sizeof(MainWeight) == sizeof(float));

}  // namespace braid
