#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/watched_storage.h"

namespace braid {

/// A disk that gets the calls of a log, and what it may hold after a power loss. Only what is
/// synced is certain:
///  - bytes written to a file since its last fsync may be there, be lost, be cut short, or be zeros
///    (the file has got its length, but not its data); each write for itself;
///  - names that were made, renamed or removed since the last fsync of their folder may be there or
///    not: the first few of them (as file systems with a journal have it), or any. A rename is
///    there whole or not at all.
class SimulatedDisk {
 public:
  /// `folder`: the empty folder that the log is about. It is durable.
  explicit SimulatedDisk(std::string folder) : root_(std::move(folder)) {}

  /// Makes the call.
  void add(const StorageCall& call);
  /// Makes what a power loss may leave behind below `target`, an existing folder.
  void lose_power(std::mt19937& random, const std::string& target) const;

 private:
  using Node = int64_t;  // of a file or folder
  static constexpr Node kNone = -1;

  struct File {
    std::string synced;
    std::vector<std::string> pending;  // writes, each at the end of what was there
  };
  using Entries = std::map<std::string, Node>;
  struct Change {
    Node folder = kNone;
    std::string name;
    Node node = kNone;  // kNone: removed
  };
  using Changes = std::vector<Change>;  // that happen together

  Node folder_at(const std::string& path) const;
  std::pair<Node, std::string> place_of(const std::string& path) const;
  Node node_at(const std::string& path) const;
  void change(Changes changes);
  void sync_folder(Node folder);
  static void apply(const Changes& changes, std::map<Node, Entries>& folders);
  static std::string bytes_of(const File& file, std::mt19937& random);
  void write(Node folder, const std::map<Node, Entries>& folders, std::mt19937& random,
             const std::string& path) const;

  std::string root_;
  std::map<Node, Entries> now_ = {{0, {}}};
  std::map<Node, Entries> synced_ = {{0, {}}};
  std::vector<Changes> pending_;
  std::map<Node, File> files_;
  std::map<uint64_t, Node> file_nodes_;  // by number in the log
  Node next_node_ = 1;
};

}  // namespace braid
