#include "ops/host_slots.h"

#include "support/partial_rows_cases.h"

namespace braid {
namespace {

using Values = std::vector<double>;

// Two hosts of two experts each, blocks of two tokens, seen by host 1. Its tokens have the experts
// {0, 1}, {2, 3}, {1, 2} and {0, 3}; those of host 0 {0, 1}, {3, 2}, {2, 0} and {3, 3}.
TEST(HostSlots, SendEachHostOneCopyOfAToken) {
  KernelCase kernel = slots_case({.tokens = 4, .block_rows = 2, .member = 1});
  kernel.set(0, {0, 1, 3, 2, 2, 0, 3, 3, 0, 1, 2, 3, 1, 2, 0, 3});
  kernel.run();
  constexpr double kNone = 4;
  constexpr double kLacks = 5;
  EXPECT_EQ(kernel.values(1), (Values{0, kNone, kNone, 2, 1, 3, kLacks, kLacks}));
  EXPECT_EQ(kernel.values(2), (Values{0, 4, 3, 5})) << "token * hosts + host";
  EXPECT_EQ(kernel.values(3), (Values{kNone, 0, 1, kLacks, kNone, 2, 3, kLacks}));
  EXPECT_EQ(kernel.values(4), (Values{1, 2, 5, 6}));
  EXPECT_EQ(kernel.values(5), (Values{1, 0, 0, 2, 0, 1, 2, 0})) << "2: of the other host";
  // Three tokens for each host, in blocks of two slots, which count as 5 / 2 rows each. The last
  // token has an expert on each. Six rows came, of which five have room.
  EXPECT_EQ(kernel.values(6), (Values{103, 13, 8, 5, 8}));
}

TEST(HostSlots, CountRowsThatCameBeyondTheirRoom) {
  SlotsCase c{.tokens = 4, .block_rows = 4, .member = 1};
  c.rows = 3;
  KernelCase kernel = slots_case(c);
  kernel.set(0, {0, 1, 3, 2, 2, 0, 0, 1, 0, 1, 2, 3, 1, 0, 0, 1});
  kernel.run();
  EXPECT_EQ(kernel.values(6), (Values{102, 12, 5, 3, 8})) << "3 + 2 rows, two tokens lie in blocks";
}

TEST(HostSlots, OfNoTokensAreEmpty) {
  KernelCase kernel = slots_case({.tokens = 2, .block_rows = 1, .member = 0});
  kernel.set_all(0, 3);  // all of host 1
  kernel.run();
  EXPECT_EQ(kernel.values(1), (Values{2, 1, 2, 3}));
  EXPECT_EQ(kernel.values(2), (Values{4, 1}));
  EXPECT_EQ(kernel.values(3), (Values{2, 2, 2, 2}));
  EXPECT_EQ(kernel.values(4), (Values{4, 4}));
  EXPECT_EQ(kernel.values(5), (Values{2, 2, 2, 2}));
}

/// The maps between tokens and slots, token by token.
struct Expected {
  Values slot_of;
  Values token_of;

  /// `is_sent(token, block)`: whether it should be there; numbers of tokens count blocks first.
  template <class IsSent, class Number>
  Expected(const SlotsCase& c, int64_t tokens, const IsSent& is_sent, const Number& number)
      : slot_of(static_cast<size_t>(tokens), static_cast<double>(c.slots())),
        token_of(static_cast<size_t>(c.slots()), static_cast<double>(c.tokens * c.hosts)) {
    for (int64_t block = 0; block < c.hosts; ++block) {
      int64_t used = 0;
      for (int64_t token = 0; token < c.tokens; ++token) {
        if (!is_sent(token, block)) {
          continue;
        }
        const auto at = static_cast<size_t>(number(token, block));
        const int64_t slot = block * c.block_rows + used;
        if (used == c.block_rows) {
          slot_of[at] = static_cast<double>(c.slots() + (c.drops ? 0 : 1));
        } else {
          slot_of[at] = static_cast<double>(slot);
          token_of[static_cast<size_t>(slot)] = static_cast<double>(at);
          ++used;
        }
      }
    }
  }
};

TEST(HostSlots, EqualAPlainReference) {
  for (const SlotsCase& c : slots_cases()) {
    KernelCase kernel = slots_case(c);
    const Values experts = kernel.values(0);
    kernel.run();
    const int64_t of_host = c.experts / c.hosts;
    const auto host_of = [&](int64_t rank, int64_t token, int64_t j) {
      const int64_t at = (rank * c.tokens + token) * c.per_token + j;
      return static_cast<int64_t>(experts[static_cast<size_t>(at)]) / of_host;
    };
    const auto has = [&](int64_t rank, int64_t token, int64_t host) {
      for (int64_t j = 0; j < c.per_token; ++j) {
        if (host_of(rank, token, j) == host) {
          return true;
        }
      }
      return false;
    };
    const Expected sent(
        c, c.tokens * c.hosts,
        [&](int64_t token, int64_t host) { return has(c.member, token, host); },
        [&](int64_t token, int64_t host) { return token * c.hosts + host; });
    const Expected came(
        c, c.tokens * c.hosts,
        [&](int64_t token, int64_t rank) { return has(rank, token, c.member); },
        [&](int64_t token, int64_t rank) { return rank * c.tokens + token; });
    EXPECT_EQ(kernel.values(1), sent.slot_of) << name_of(c);
    EXPECT_EQ(kernel.values(2), sent.token_of) << name_of(c);
    EXPECT_EQ(kernel.values(3), came.slot_of) << name_of(c);
    EXPECT_EQ(kernel.values(4), came.token_of) << name_of(c);
    Values choices;
    for (const double token : came.token_of) {
      for (int64_t j = 0; j < c.per_token; ++j) {
        const auto at = static_cast<int64_t>(token);
        const bool is_here =
            at < c.tokens * c.hosts && host_of(at / c.tokens, at % c.tokens, j) == c.member;
        const double expert = is_here ? experts[static_cast<size_t>(at * c.per_token + j)] : 0.0;
        choices.push_back(is_here ? expert - static_cast<double>(c.member * of_host)
                                  : static_cast<double>(of_host));
      }
    }
    EXPECT_EQ(kernel.values(5), choices) << name_of(c);
  }
}

// What a rank sends to a host is what the rank there gets.
TEST(HostSlots, OfBothEndsAgree) {
  SlotsCase c{.hosts = 4, .tokens = 30, .per_token = 3, .experts = 16, .block_rows = 12};
  std::vector<KernelCase> ranks;
  for (c.member = 0; c.member < c.hosts; ++c.member) {
    ranks.push_back(slots_case(c));
    ranks.back().run();
  }
  for (int64_t from = 0; from < c.hosts; ++from) {
    const Values sent = ranks[size_t(from)].values(2);
    for (int64_t to = 0; to < c.hosts; ++to) {
      const Values came = ranks[size_t(to)].values(4);
      for (int64_t i = 0; i < c.block_rows; ++i) {
        const double one = sent[size_t(to * c.block_rows + i)];
        const double other = came[size_t(from * c.block_rows + i)];
        const auto none = static_cast<double>(c.tokens * c.hosts);
        EXPECT_EQ(one == none, other == none);
        if (one != none) {
          EXPECT_EQ(std::floor(one / 4), other - static_cast<double>(from * c.tokens));
        }
      }
    }
  }
}

}  // namespace
}  // namespace braid
