#include "comm/emulated_call.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include "base/errors.h"
#include "base/philox.h"
#include "comm/row_exchange.h"
#include "ops/op.h"
#include "ops/row_blocks.h"

namespace braid {
namespace {

constexpr uint64_t kStockKey = 0x73746f636b;  // arbitrary
constexpr double kStockStd = 0.02;
constexpr int64_t kCopyAlignment = 16;

/// Truncates, which is good enough for random numbers.
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

/// The block for this rank, from every member: rows of experts must fit the offsets, and those that
/// a rank gathered from stand-ins are its own (ops/row_blocks.h).
std::vector<StandInCopy> copies_of_own_block(const CommCall& call, int64_t place) {
  const auto members = static_cast<int64_t>(call.group->ranks.size());
  const int64_t bytes = call.num_bytes() / members;
  std::vector<StandInCopy> copies;
  for (int64_t from = 0; from < members; ++from) {
    copies.push_back({.from_bytes = place * bytes, .to_bytes = from * bytes, .num_bytes = bytes});
  }
  return copies;
}

/// Whether two addresses have the same alignment for a copy.
bool are_aligned_alike(const std::byte* a, const std::byte* b) {
  return (reinterpret_cast<uintptr_t>(a) - reinterpret_cast<uintptr_t>(b)) % kCopyAlignment == 0;
}

/// Copies into a part of y from places of the stock with the same alignment.
void add_copies_of_stock(const CommCall& call, int64_t to_bytes, int64_t num_bytes,
                         int64_t stock_bytes, std::vector<StandInCopy>& copies) {
  check(stock_bytes >= 2 * kStockAlignment, "a stock of {} bytes", stock_bytes);
  const int64_t piece = stock_bytes - kStockAlignment;
  for (int64_t done = 0; done < num_bytes; done += piece) {
    const auto address = reinterpret_cast<uintptr_t>(call.recv + to_bytes + done);
    copies.push_back({.from_stock = true,
                      .from_bytes = static_cast<int64_t>(address % kStockAlignment),
                      .to_bytes = to_bytes + done,
                      .num_bytes = std::min(piece, num_bytes - done)});
  }
}

/// Copies from x, whatever its alignment.
std::vector<StandInCopy> copies_of_own(const CommCall& call, int64_t place) {
  const auto elem_bytes = static_cast<int64_t>(dtype_bytes(call.dtype));
  const int64_t x_bytes = call.send_elems * elem_bytes;
  const int64_t y_bytes = call.recv_elems * elem_bytes;
  switch (call.op) {
    case CommOp::kAllGather:
      return copies_of_x(x_bytes, static_cast<int64_t>(call.group->ranks.size()));
    case CommOp::kReduceScatter:
      return {{.from_bytes = place * y_bytes, .num_bytes = y_bytes}};
    case CommOp::kAllToAll:
      return call.dtype == DType::kU8 ? copies_of_own_block(call, place) : copies_of_x(x_bytes, 1);
    default:
      return copies_of_x(x_bytes, 1);
  }
}

/// As if all members had this rank's rows, and offsets: those that it gathered from stand-ins are
/// its own.
void exchange_with_likenesses(const CommCall& call, size_t member) {
  const std::vector<RowsOfMember> given(call.group->ranks.size(), rows_given(call));
  exchange_rows(call, member, given);
}

}  // namespace

int64_t EmulatedPeers::anew_bytes_of(const Program& program, const Task& task) const {
  const OpSpec& spec = program.spec(task);
  if (exchanges_row_blocks(spec)) {
    return std::numeric_limits<int64_t>::max();  // in every step, by its offsets
  }
  const bool gathers = task.label.layer >= 0 && communicates_as(spec, CommOp::kAllGather) &&
                       is_floating_point(spec.operands[0].dtype);
  return gathers ? std::min(anew_bytes, anew_gathered_bytes) : anew_bytes;
}

std::vector<StandInCopy> stand_in_copies(const CommCall& call, int rank, int64_t stock_bytes) {
  const auto place = static_cast<int64_t>(check_comm_call(call, rank));
  std::vector<StandInCopy> copies;
  if (call.op == CommOp::kRecv) {
    add_copies_of_stock(call, 0, call.num_bytes(), stock_bytes, copies);
  } else if (call.op != CommOp::kSend && !call.exchanges_rows()) {
    for (const StandInCopy& own : copies_of_own(call, place)) {
      const bool is_index = call.dtype == DType::kI32;  // random ones would lead anywhere
      if (is_index || are_aligned_alike(call.send + own.from_bytes, call.recv + own.to_bytes)) {
        copies.push_back(own);
      } else {
        add_copies_of_stock(call, own.to_bytes, own.num_bytes, stock_bytes, copies);
      }
    }
  }
  return copies;
}

bool copies_nothing(const StandInCopy& copy, const CommCall& call) {
  return !copy.from_stock && call.send + copy.from_bytes == call.recv + copy.to_bytes;
}

void run_emulated(const EmulatedCall& emulated, const CommCall& call,
                  std::span<const std::byte> stock, bool is_first_step) {
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(emulated.duration_ns);
  const bool fills = emulated.every_step || is_first_step;
  for (const StandInCopy& copy : emulated.copies) {
    if (fills && !copies_nothing(copy, call)) {
      const std::byte* const from = copy.from_stock ? stock.data() : call.send;
      std::memcpy(call.recv + copy.to_bytes, from + copy.from_bytes,
                  static_cast<size_t>(copy.num_bytes));
    }
  }
  if (call.exchanges_rows()) {
    exchange_with_likenesses(call, emulated.member);
  }
  std::this_thread::sleep_until(end);
}

void fill_stock(std::span<std::byte> stock) {
  std::array<uint16_t, 2> words{};
  for (size_t done = 0; done < stock.size(); done += sizeof(words)) {
    const auto normals = philox_normal_pair(kStockKey, done / sizeof(words));
    words = {to_bf16(kStockStd * normals[0]), to_bf16(kStockStd * normals[1])};
    std::memcpy(stock.data() + done, words.data(), std::min(sizeof(words), stock.size() - done));
  }
}

}  // namespace braid
