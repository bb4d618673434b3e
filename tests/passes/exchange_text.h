#pragma once

#include <fmt/core.h>

#include <string>

/// A rank that exchanges heads for sequence, as text of programs.
namespace braid::exchange_text {

// Rank 0 of 2 that exchange heads: 32 rows of a sequence of 64, 4 heads of size 2 with 2 key/value
// heads. x has the rows of the rank, y those of the whole sequence.
inline const std::string kHead =
    "program step rank=0 ranks=2 events=0\n"
    "stream s kind=compute priority=0\n"
    "group context.inner kind=context ranks=0,1\n"
    "buffer in f32 [32,16] activation step device\n"
    "buffer w f32 [16,16] param persistent device\n"
    "buffer qkv f32 [32,16] activation step device\n"
    "buffer x f32 [32,16] activation step device\n"
    "buffer h f32 [64,8] activation step device\n"
    "buffer e f32 [64,8] activation step device\n"
    "buffer y f32 [64,8] activation step device\n"
    "buffer m f32 [64,4] activation step device\n"
    "buffer lse f32 [1,2,64] activation step device\n"
    "buffer p f32 [64,4] activation step device\n"
    "buffer b f32 [64,4] activation step device\n"
    "buffer o f32 [32,8] activation step device\n"
    "buffer v f32 [16,8] param persistent device\n"
    "buffer out f32 [32,16] activation step device\n";

inline const std::string kFill = "fill(-> in) s forward mb=0 layer=0\n";
inline const char* const kLinear = "{has_bias=false, adds_bias=true} s forward mb=0 layer=0\n";

inline std::string rope(const char* operands, int sequence, const std::string& positions) {
  return fmt::format(
      "rope({}) {{heads=4, kv_heads=2, head_size=2, sequence={}, theta=10000.0, inverse=false{}}} "
      "s forward mb=0 layer=0\n",
      operands, sequence, positions);
}
inline std::string split(const std::string& operands, bool inverse, const char* phase = "forward") {
  return fmt::format(
      "split_heads({}) {{ranks=2, heads=4, kv_heads={}, head_size=2, inverse={}}} s {} mb=0 "
      "layer=0\n",
      operands, inverse ? 0 : 2, inverse, phase);
}
inline std::string call(const std::string& operands) {
  return fmt::format("all_to_all({}) {{group=0}} s comm mb=0 layer=0\n", operands);
}
inline std::string swap(const std::string& operands, int outer, int inner) {
  return fmt::format("swap_blocks({}) {{outer={}, inner={}}} s forward mb=0 layer=0\n", operands,
                     outer, inner);
}
inline std::string attention(const std::string& operands, int sequence) {
  return fmt::format(
      "attention({}) {{heads=2, kv_heads=1, head_size=2, sequence={}, scale=0.5}} s forward mb=0 "
      "layer=0\n",
      operands, sequence);
}

inline const std::string kQkv = std::string("linear(in, w -> qkv) ") + kLinear;
inline const std::string kRope = rope("qkv -> x", 32, ", first_begin=0, second_begin=32, split=16");
inline const std::string kIn = split("x -> h", false) + call("h -> e") + swap("e -> y", 2, 2);
inline const std::string kAttention = attention("y -> m, lse", 64);
inline const std::string kOut = swap("m -> p", 2, 2) + call("p -> b") + split("b -> o", true);
inline const std::string kProj = std::string("linear(o, v -> out) ") + kLinear;
inline const std::string kForward = kFill + kQkv + kRope + kIn + kAttention + kOut + kProj;

inline const std::string kInHalves = split("x[0:256] [16,16] -> h[0:256] [32,8]", false) +
                                     call("h[0:256] [32,8] -> y[0:256] [32,8]") +
                                     split("x[256:512] [16,16] -> h[256:512] [32,8]", false) +
                                     call("h[256:512] [32,8] -> y[256:512] [32,8]");
/// The same in halves, with the tasks after the attention.
inline const std::string kBackCall0 = call("m[0:128] [32,4] -> b[0:128] [32,4]");
inline const std::string kBackCall1 = call("m[128:256] [32,4] -> b[128:256] [32,4]");
inline const std::string kBack0 = split("b[0:128] [32,4] -> o[0:128] [16,8]", true);
inline const std::string kBack1 = split("b[128:256] [32,4] -> o[128:256] [16,8]", true);

inline const std::string kOutHalves = kBackCall0 + kBackCall1 + kBack0 + kBack1;

}  // namespace braid::exchange_text
