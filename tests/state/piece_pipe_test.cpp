#include "state/piece_pipe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <stdexcept>
#include <thread>

#include "base/errors.h"

namespace braid {
namespace {

std::vector<HostBlock> blocks_of(std::vector<size_t> sizes) {
  std::vector<HostBlock> blocks;
  for (const size_t size : sizes) {
    const auto bytes = std::make_shared<std::vector<std::byte>>(size);
    blocks.push_back({*bytes, bytes});
  }
  return blocks;
}

/// Fills the pipe with pieces of random sizes; returns what was handed over.
std::vector<std::byte> fill(PiecePipe& pipe, int num_pieces, std::mt19937& random) {
  std::vector<std::byte> sent;
  for (int i = 0; i < num_pieces; ++i) {
    const std::span<std::byte> block = pipe.next();
    const size_t size = random() % (block.size() + 1);
    std::generate_n(block.begin(), size, [&] { return static_cast<std::byte>(random()); });
    sent.insert(sent.end(), block.begin(), block.begin() + static_cast<ptrdiff_t>(size));
    pipe.submit(size);
  }
  return sent;
}

TEST(PiecePipe, HandsOverEveryByteInOrder) {
  for (const std::vector<size_t>& sizes :
       {std::vector<size_t>{100}, {100, 100}, {7, 100, 1}, {50, 50, 50, 50}}) {
    std::mt19937 random(17);
    std::vector<std::byte> received;
    PiecePipe pipe(blocks_of(sizes), [&](std::span<const std::byte> piece) {
      received.insert(received.end(), piece.begin(), piece.end());
      if (piece.size() % 5 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
    std::vector<std::byte> sent = fill(pipe, 100, random);
    pipe.finish();
    EXPECT_EQ(received, sent);
    const std::vector<std::byte> more = fill(pipe, 10, random);  // goes on after a finish
    pipe.finish();
    sent.insert(sent.end(), more.begin(), more.end());
    EXPECT_EQ(received, sent);
  }
}

TEST(PiecePipe, FillsTheNextWhileTheLastIsConsumed) {
  std::atomic<bool> second_filled{false};
  PiecePipe pipe(blocks_of({8, 8}), [&](std::span<const std::byte>) {
    while (!second_filled) {  // would hang if filling waited for this
      std::this_thread::yield();
    }
  });
  pipe.next();
  pipe.submit(8);
  pipe.next();
  second_filled = true;
  pipe.submit(8);
  pipe.finish();
}

TEST(PiecePipe, ErrorsOfTheConsumerSurface) {
  int num_consumed = 0;
  const auto second_fails = [&](std::span<const std::byte>) {
    if (++num_consumed == 2) {
      throw DataError("no space left");
    }
  };
  PiecePipe pipe(blocks_of({8, 8}), second_fails);
  EXPECT_THROW(
      {
        for (int i = 0; i < 10; ++i) {
          pipe.next();
          pipe.submit(8);
        }
      },
      DataError);
  EXPECT_THROW(pipe.finish(), DataError);
  EXPECT_EQ(num_consumed, 2);  // nothing after the error

  num_consumed = 1;
  PiecePipe last(blocks_of({8, 8}), second_fails);
  last.next();
  last.submit(8);
  EXPECT_THROW(last.finish(), DataError);
}

TEST(PiecePipe, WithoutFinishItEndsAfterThePieceInWork) {
  std::atomic<int> num_consumed{0};
  {
    PiecePipe pipe(blocks_of({8, 8, 8}), [&](std::span<const std::byte>) {
      ++num_consumed;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    for (int i = 0; i < 3; ++i) {
      pipe.next();
      pipe.submit(8);
    }
  }
  EXPECT_LE(num_consumed, 3);
}

TEST(PiecePipe, RefusesMoreThanABlock) {
  PiecePipe pipe(blocks_of({8, 8}), [](std::span<const std::byte>) {});
  pipe.next();
  EXPECT_THROW(pipe.submit(9), InternalError);
  EXPECT_THROW(PiecePipe({}, [](std::span<const std::byte>) {}), InternalError);
}

}  // namespace
}  // namespace braid
