#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// Communication between the n ranks of a group: Program::groups[group], and in a stage graph
/// StageGraph::groups[group]. Every rank of the group calls the same op with equal attributes
/// (except `peer` and `channel`) and shapes. Members are counted in group order. Sums are computed
/// in that order in fp32 (f64 for f64) and rounded once: the same bits on every rank. In a group of
/// one rank every op is a copy. x and y have one dtype; ops that only move bytes accept any dtype.
///
/// Each op is differentiated by its dual: what it does to values, the dual does to gradients in the
/// opposite direction.
///
///   op              operands                  y                               dual
///   all_reduce      x rw, or x -> y           sum of all x                    identity
///   all_reduce_max  x rw, or x -> y           largest of all x, i32          none
///   identity        x -> y                    x, without communication        all_reduce
///   all_gather      x [m,...] -> y [n*m,...]  the x of all members in order   reduce_scatter
///   reduce_scatter  x [n*m,...] -> y [m,...]  block i of the sum on member i  all_gather
///   all_to_all      x -> y [n*m,...]          block i is block j of member    all_to_all
///                                             i's x, on member j
///   broadcast       x -> y                    the root's x                    reduce
///   reduce          x -> y                    sum of all x on the root,       broadcast
///                                             zeros on the others
///   send            x                         (of the matching recv)          recv
///   recv            -> y                      x of the matching send          send
///   ring_shift      x -> y                    x of member (i - shift) mod n   ring_shift
///                                             on member i                     by -shift
///
/// all_reduce and identity are the pair that Megatron-LM calls "reduce from" and "copy to" the
/// tensor-parallel region: if y is the same on all ranks, its gradient is complete on each.
/// `engine` selects what moves the bytes on a device that has a choice. "copy": copy engines,
/// driven by braid, for all_gather, all_to_all, ring_shift, send and recv. "nccl_copy": copy
/// engines, driven by NCCL, for all_gather and all_to_all. Without the attribute: kernels. The CPU
/// ignores it. Equal on all ranks. Pass comm_engine chooses it.
struct EngineAttribute {
  std::string engine;
  void fields(auto&& visit) { visit("engine", engine); }
  friend bool operator==(const EngineAttribute&, const EngineAttribute&) = default;
};

struct CollectiveAttributes {
  int64_t group = 0;
  EngineAttribute by = {};
  void fields(auto&& visit) {
    visit("group", group);
    visit.optional(by);
  }
};

/// For broadcast and reduce.
struct RootAttributes {
  int64_t group = 0;
  int64_t root = 0;  ///< a member of the group
  void fields(auto&& visit) {
    visit("group", group);
    visit("root", root);
  }
};

/// For send and recv: messages from one member to another with one channel match in order. A send
/// ends when the receiver has the data. The dual uses channel ^ 1.
struct MessageAttributes {
  int64_t group = 0;
  int64_t peer = 0;  ///< the member at the other end
  int64_t channel = 0;
  EngineAttribute by = {};
  void fields(auto&& visit) {
    visit("group", group);
    visit("peer", peer);
    visit("channel", channel);
    visit.optional(by);
  }
};

/// For ring_shift: x of member i goes to member (i + shift) mod n. Any shift, also 0 and negative
/// ones.
struct RingShiftAttributes {
  int64_t group = 0;
  int64_t shift = 1;
  EngineAttribute by = {};
  void fields(auto&& visit) {
    visit("group", group);
    visit("shift", shift);
    visit.optional(by);
  }
};

extern const OpDefinition kAllReduceOp;
extern const OpDefinition kAllReduceMaxOp;
extern const OpDefinition kIdentityOp;
extern const OpDefinition kAllGatherOp;
extern const OpDefinition kReduceScatterOp;
extern const OpDefinition kAllToAllOp;
extern const OpDefinition kBroadcastOp;
extern const OpDefinition kReduceOp;
extern const OpDefinition kSendOp;
extern const OpDefinition kRecvOp;
extern const OpDefinition kRingShiftOp;

/// Whether copy engines can do all of an op: it moves blocks from one rank to another, and adds
/// nothing.
bool copies_suffice(std::string_view op);
/// Whether NCCL has a collective by copy engines for an op (NCCL 2.28).
bool nccl_copies_suffice(std::string_view op);
/// Whether the spec requests copy engines driven by braid.
bool is_by_copy_engine(const OpSpec& spec);
/// Whether the spec requests copy engines driven by NCCL.
bool is_by_nccl_copies(const OpSpec& spec);
/// Whether the spec requests copy engines of either kind: it then takes no SM.
bool needs_no_sm(const OpSpec& spec);
/// The spec with copy engines driven by braid; requires `copies_suffice`.
OpSpec by_copy_engine(OpSpec spec);
/// The spec with copy engines driven by NCCL; requires `nccl_copies_suffice`.
OpSpec by_nccl_copies(OpSpec spec);
/// The spec without an engine, for comparing meanings.
OpSpec by_any_engine(OpSpec spec);

/// These functions add forward nodes to stage graphs; each returns y, named after the site: an
/// activation, or of kind kOfWeights as x. `group` is a name, `num_ranks` its number of ranks.
ValueId all_reduce(GraphBuilder& builder, ValueId x, std::string_view group, std::string_view site);
ValueId identity(GraphBuilder& builder, ValueId x, std::string_view group, std::string_view site);
ValueId all_gather(GraphBuilder& builder, ValueId x, std::string_view group, int64_t num_ranks,
                   std::string_view site);
/// Throws InternalError unless num_ranks divides the first dimension of x.
ValueId reduce_scatter(GraphBuilder& builder, ValueId x, std::string_view group, int64_t num_ranks,
                       std::string_view site);
/// Throws like `reduce_scatter`.
ValueId all_to_all(GraphBuilder& builder, ValueId x, std::string_view group, int64_t num_ranks,
                   std::string_view site);
ValueId broadcast(GraphBuilder& builder, ValueId x, std::string_view group, int64_t root,
                  std::string_view site);
ValueId reduce(GraphBuilder& builder, ValueId x, std::string_view group, int64_t root,
               std::string_view site);
ValueId ring_shift(GraphBuilder& builder, ValueId x, std::string_view group, int64_t shift,
                   std::string_view site);

/// One end of a message.
struct MessageEnd {
  std::string_view group;
  int64_t peer = 0;
  int64_t channel = 0;
};
void send(GraphBuilder& builder, ValueId x, const MessageEnd& end, std::string_view site);
ValueId recv(GraphBuilder& builder, DType dtype, const Shape& shape, const MessageEnd& end,
             std::string_view site);

}  // namespace braid
