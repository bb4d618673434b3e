#pragma once

#include <string>

namespace braid {

/// The fixed coin that splits published rows and tables: depends on the name alone. Stacks and
/// prices are fitted to those that it selects; the others are never fitted.
bool is_fitting_row(const std::string& name);

}  // namespace braid
