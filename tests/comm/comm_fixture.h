#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "comm/transport.h"

namespace braid {

using Transports = std::vector<std::unique_ptr<Transport>>;

inline Group make_group(std::string name, std::vector<int> ranks,
                        GroupKind kind = GroupKind::kData) {
  return {std::move(name), kind, std::move(ranks)};
}

inline Group all_ranks(int num_ranks) {
  std::vector<int> ranks(static_cast<size_t>(num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_group("all", std::move(ranks));
}

template <class T>
std::byte* bytes_of(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

/// y = op(x); the rest is for the test to set.
template <class T>
CommCall call_between(CommOp op, const Group& group, std::vector<T>& x, std::vector<T>& y) {
  return {.op = op,
          .group = &group,
          .send = bytes_of(x),
          .recv = bytes_of(y),
          .send_elems = static_cast<int64_t>(x.size()),
          .recv_elems = static_cast<int64_t>(y.size()),
          .dtype = dtype_of<T>(),
          .what = "values"};
}

template <class T>
CommCall all_reduce_of(const Group& group, std::vector<T>& x, std::string what = "values") {
  CommCall call = call_between(CommOp::kAllReduce, group, x, x);
  call.what = std::move(what);
  return call;
}

template <class T>
CommCall send_of(const Group& group, std::vector<T>& x, int64_t peer, int64_t channel = 0) {
  std::vector<T> none;
  CommCall call = call_between(CommOp::kSend, group, x, none);
  call.recv = nullptr;
  call.peer = peer;
  call.channel = channel;
  return call;
}

template <class T>
CommCall recv_of(const Group& group, std::vector<T>& y, int64_t peer, int64_t channel = 0) {
  std::vector<T> none;
  CommCall call = call_between(CommOp::kRecv, group, none, y);
  call.send = nullptr;
  call.peer = peer;
  call.channel = channel;
  return call;
}

/// Runs `body(i)` for i in [0, count) on a thread each; the message that each threw, or "".
inline std::vector<std::string> on_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      std::string& error = errors[static_cast<size_t>(i)];
      try {
        body(i);
      } catch (const AbortedError& caught) {
        error = std::string("aborted: ") + caught.what();
      } catch (const Error& caught) {
        error = caught.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

inline void random_delay(std::mt19937& random) {
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
}

/// Normal values; integers up to a few thousand.
template <class T>
std::vector<T> random_values(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> values(count);
  for (T& value : values) {
    const float number = normal(random);
    value = static_cast<T>(std::is_integral_v<T> ? 1000 * number : number);
  }
  return values;
}

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace braid
