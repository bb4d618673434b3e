#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>

#include "ir/program.h"
#include "parallel/mesh.h"

namespace braid {

/// Groups of one rank's program, by the names of Mesh::group.
class ProgramGroups {
 public:
  ProgramGroups(ProgramBuilder& builder, const Mesh& mesh, int rank)
      : builder_(builder), mesh_(mesh), rank_(rank) {}

  /// Returns the group's id. Adds the group to the program at first use.
  GroupId id(std::string_view name);
  int64_t size(std::string_view name);
  /// Position of the rank in the group.
  int64_t index(std::string_view name) const { return mesh_.index_in(name, rank_); }

 private:
  struct Entry {
    Group group;
    GroupId id;
  };
  Entry& entry(std::string_view name);

  ProgramBuilder& builder_;
  const Mesh& mesh_;
  int rank_;
  std::map<std::string, Entry, std::less<>> entries_;
};

/// Adds the tasks of a step that are not part of a stage graph. They work on flat ranges and run on
/// one stream. Group names are those of Mesh::group. Communication in a group of one rank is
/// omitted if it would change nothing.
class TaskWriter {
 public:
  TaskWriter(ProgramBuilder& builder, ProgramGroups& groups, StreamId stream)
      : builder_(builder), groups_(groups), stream_(stream) {}

  ProgramBuilder& builder() { return builder_; }
  ProgramGroups& groups() { return groups_; }
  StreamId stream() const { return stream_; }

  BufferId step_buffer(std::string name, DType dtype, int64_t num_elems, BufferRole role);
  void fill_zero(BufferRange range, const Label& label);
  /// Converts each element to the dtype of `to`.
  void cast(BufferRange from, BufferRange to, const Label& label);
  void copy(BufferRange from, BufferRange to, const Label& label);
  /// to += from.
  void accumulate(BufferRange from, BufferRange to, const Label& label);
  void all_reduce(const BufferRange& range, std::string_view group, const Label& label);
  /// The largest elements of i32.
  void all_reduce_max(const BufferRange& range, std::string_view group, const Label& label);
  /// `whole` has the elements of `part` times the number of ranks in the group.
  void reduce_scatter(BufferRange whole, BufferRange part, std::string_view group,
                      const Label& label);
  void all_gather(BufferRange part, BufferRange whole, std::string_view group, const Label& label);
  /// Sends to or receives from member `peer` of the group, on `stream`.
  void send(BufferRange range, std::string_view group, int64_t peer, int64_t channel,
            StreamId stream, const Label& label);
  void recv(BufferRange range, std::string_view group, int64_t peer, int64_t channel,
            StreamId stream, const Label& label);

 private:
  void combine(std::string_view op, BufferRange range, std::string_view group, const Label& label);
  DType dtype_of(BufferRange range) const;
  OperandSpec operand(BufferRange range, Access access) const;
  template <class Attributes>
  void add(std::string_view op, Attributes attributes, std::span<const BufferRange> ranges,
           std::span<const Access> accesses, StreamId stream, const Label& label);

  ProgramBuilder& builder_;
  ProgramGroups& groups_;
  StreamId stream_;
};

}  // namespace braid
