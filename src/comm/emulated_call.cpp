#include "comm/emulated_call.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/errors.h"
#include "base/philox.h"

namespace braid {
namespace {

constexpr uint64_t kStockKey = 0x73746f636b;  // any

/// Truncated, which is as good for numbers that nobody looks at.
uint16_t to_bf16(double value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
}

std::vector<StandInCopy> copies_of_x(int64_t x_bytes, int64_t times) {
  std::vector<StandInCopy> copies;
  for (int64_t i = 0; i < times; ++i) {
    copies.push_back({.to_bytes = i * x_bytes, .num_bytes = x_bytes});
  }
  return copies;
}

std::vector<StandInCopy> copies_of_stock(int64_t y_bytes, int64_t stock_bytes) {
  check(stock_bytes > 0, "a stock of {} bytes", stock_bytes);
  std::vector<StandInCopy> copies;
  for (int64_t done = 0; done < y_bytes; done += stock_bytes) {
    copies.push_back(
        {.from_stock = true, .to_bytes = done, .num_bytes = std::min(stock_bytes, y_bytes - done)});
  }
  return copies;
}

}  // namespace

std::vector<StandInCopy> stand_in_copies(const CommCall& call, int rank, int64_t stock_bytes) {
  const auto place = static_cast<int64_t>(check_comm_call(call, rank));
  const auto elem_bytes = static_cast<int64_t>(dtype_bytes(call.dtype));
  const int64_t x_bytes = call.send_elems * elem_bytes;
  const int64_t y_bytes = call.recv_elems * elem_bytes;
  switch (call.op) {
    case CommOp::kSend:
      return {};
    case CommOp::kRecv:
      return copies_of_stock(y_bytes, stock_bytes);
    case CommOp::kAllGather:
      return copies_of_x(x_bytes, static_cast<int64_t>(call.group->ranks.size()));
    case CommOp::kReduceScatter:
      return {{.from_bytes = place * y_bytes, .num_bytes = y_bytes}};
    default:
      return copies_of_x(x_bytes, 1);
  }
}

bool copies_nothing(const StandInCopy& copy, const CommCall& call) {
  return !copy.from_stock && call.send + copy.from_bytes == call.recv + copy.to_bytes;
}

void run_emulated(const EmulatedCall& emulated, const CommCall& call,
                  std::span<const std::byte> stock) {
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(emulated.duration_ns);
  for (const StandInCopy& copy : emulated.copies) {
    if (!copies_nothing(copy, call)) {
      const std::byte* const from = copy.from_stock ? stock.data() : call.send;
      std::memcpy(call.recv + copy.to_bytes, from + copy.from_bytes,
                  static_cast<size_t>(copy.num_bytes));
    }
  }
  std::this_thread::sleep_until(end);
}

void fill_stock(std::span<std::byte> stock) {
  std::array<uint16_t, 2> words{};
  for (size_t done = 0; done < stock.size(); done += sizeof(words)) {
    const auto normals = philox_normal_pair(kStockKey, done / sizeof(words));
    words = {to_bf16(normals[0]), to_bf16(normals[1])};
    std::memcpy(stock.data() + done, words.data(), std::min(sizeof(words), stock.size() - done));
  }
}

}  // namespace braid
