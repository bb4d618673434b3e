#include "programs/fitting_half.h"

#include "base/philox.h"

namespace braid {

// FNV-1a of names that are nearly alike differs in few bits: the finalizer of MurmurHash3 (Appleby,
// public domain) spreads them.
bool is_fitting_row(const std::string& name) {
  uint64_t hash = stable_hash(name.data(), name.size());
  hash = (hash ^ (hash >> 33)) * 0xFF51AFD7ED558CCDull;
  hash = (hash ^ (hash >> 33)) * 0xC4CEB9FE1A85EC53ull;
  return ((hash ^ (hash >> 33)) & 1) == 0;
}

}  // namespace braid
