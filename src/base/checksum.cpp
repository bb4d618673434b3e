#include "base/checksum.h"

#include <fmt/core.h>
#include <xxhash.h>

#include "base/errors.h"

namespace braid {

struct Checksum::State {
  State() : xxh3(XXH3_createState()) {
    check(xxh3 != nullptr && XXH3_64bits_reset(xxh3) == XXH_OK, "XXH3 cannot be set up");
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { XXH3_freeState(xxh3); }

  XXH3_state_t* xxh3;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {}
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;
Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) {
    XXH3_64bits_update(state_->xxh3, bytes.data(), bytes.size());
  }
}

std::string Checksum::hex() const {
  return fmt::format("{:016x}", XXH3_64bits_digest(state_->xxh3));
}

std::string checksum_of(std::span<const std::byte> bytes) {
  Checksum checksum;
  checksum.add(bytes);
  return checksum.hex();
}

std::string checksum_of(const PieceFile& file) {
  Checksum checksum;
  SequentialReader reader(file);
  for (auto bytes = reader.next(); !bytes.empty(); bytes = reader.next()) {
    checksum.add(bytes);
  }
  return checksum.hex();
}

}  // namespace braid
