#include "checkpoint/simulated_disk.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "base/errors.h"
#include "base/temp_folder.h"

namespace braid {

void SimulatedDisk::add(const StorageCall& call) {
  switch (call.kind) {
    case StorageCallKind::kCreate: {
      const auto [folder, name] = place_of(call.path);
      const Node node = next_node_++;
      file_nodes_[call.file] = node;
      files_[node] = {};
      return change({{folder, name, node}});
    }
    case StorageCallKind::kWrite:
      return files_.at(file_nodes_.at(call.file)).pending.push_back(call.bytes);
    case StorageCallKind::kSync: {
      File& file = files_.at(file_nodes_.at(call.file));
      for (const std::string& bytes : std::exchange(file.pending, {})) {
        file.synced += bytes;
      }
      return;
    }
    case StorageCallKind::kSyncFolder:
      return sync_folder(folder_at(call.path));
    case StorageCallKind::kRename:
    case StorageCallKind::kExchange: {
      const auto [from, old_name] = place_of(call.path);
      const auto [to, new_name] = place_of(call.to);
      const Node back = call.kind == StorageCallKind::kExchange ? node_at(call.to) : kNone;
      return change({{to, new_name, node_at(call.path)}, {from, old_name, back}});
    }
    case StorageCallKind::kRemove:
    case StorageCallKind::kRemoveFolder: {
      const auto [folder, name] = place_of(call.path);
      return change({{folder, name, kNone}});
    }
    case StorageCallKind::kMakeFolder: {
      const auto [folder, name] = place_of(call.path);
      const Node node = next_node_++;
      now_[node] = {};
      synced_[node] = {};
      return change({{folder, name, node}});
    }
    case StorageCallKind::kOpen:
    case StorageCallKind::kRead:
    case StorageCallKind::kClose:
    case StorageCallKind::kMark:
      return;
  }
}

std::pair<SimulatedDisk::Node, std::string> SimulatedDisk::place_of(const std::string& path) const {
  const size_t slash = path.rfind('/');
  return {folder_at(path.substr(0, slash)), path.substr(slash + 1)};
}

SimulatedDisk::Node SimulatedDisk::node_at(const std::string& path) const {
  const auto [folder, name] = place_of(path);
  return now_.at(folder).at(name);
}

SimulatedDisk::Node SimulatedDisk::folder_at(const std::string& path) const {
  return path == root_ ? 0 : node_at(path);
}

void SimulatedDisk::change(Changes changes) {
  apply(changes, now_);
  pending_.push_back(std::move(changes));
}

/// Makes all changes of names in this folder durable.
void SimulatedDisk::sync_folder(Node folder) {
  std::erase_if(pending_, [&](const Changes& changes) {
    const bool concerns =
        std::ranges::any_of(changes, [&](const Change& one) { return one.folder == folder; });
    if (concerns) {
      apply(changes, synced_);
    }
    return concerns;
  });
}

void SimulatedDisk::apply(const Changes& changes, std::map<Node, Entries>& folders) {
  for (const Change& one : changes) {
    if (one.node == kNone) {
      folders[one.folder].erase(one.name);
    } else {
      folders[one.folder][one.name] = one.node;
    }
  }
}

std::string SimulatedDisk::bytes_of(const File& file, std::mt19937& random) {
  std::string bytes = file.synced;
  size_t end = bytes.size();  // of what was written
  for (const std::string& written : file.pending) {
    const size_t begin = end;
    end += written.size();
    size_t kept = 0;
    size_t length = end;
    switch (random() % 4) {
      case 0:
        continue;  // lost
      case 1:
        kept = random() % (written.size() + 1);
        length = begin + kept;
        break;
      case 2:
        break;  // zeros
      default:
        kept = written.size();
    }
    bytes.resize(length, '\0');
    std::copy_n(written.begin(), kept, bytes.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  return bytes;
}

void SimulatedDisk::lose_power(std::mt19937& random, const std::string& target) const {
  std::map<Node, Entries> folders = synced_;
  const bool has_journal = random() % 2 == 0;
  const size_t num_first = random() % (pending_.size() + 1);
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (has_journal ? i < num_first : random() % 2 == 0) {
      apply(pending_[i], folders);
    }
  }
  write(0, folders, random, target);
}

void SimulatedDisk::write(Node folder, const std::map<Node, Entries>& folders, std::mt19937& random,
                          const std::string& path) const {
  for (const auto& [name, node] : folders.at(folder)) {
    const std::string of_entry = path + "/" + name;
    if (const auto file = files_.find(node); file != files_.end()) {
      write_test_file(of_entry, bytes_of(file->second, random));
    } else {
      std::filesystem::create_directory(of_entry);
      write(node, folders, random, of_entry);
    }
  }
}

}  // namespace braid
