#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// The names of checkpoints inside their folder. Names that begin with a dot and files are not
/// checkpoints.
namespace braid {

inline constexpr std::string_view kLatestFile = "latest";

struct CheckpointEntry {
  int64_t step = 0;
  std::string path;
};

/// "step_00000100"
std::string checkpoint_name(int64_t step);

/// All checkpoints in the folder by ascending step; empty if there is no folder. Throws DataError
/// if it cannot be read.
std::vector<CheckpointEntry> list_checkpoints(const std::string& folder);

/// An unused path in `folder` for data being written ("tmp") or removed ("trash"):
/// ".step_00000100.tmp-PID-0".
std::string transient_path(const std::string& folder, const std::string& name,
                           std::string_view purpose);

/// Removes files under transient names of earlier saves of this process, or of processes that no
/// longer run. Ignores files that it cannot remove.
void remove_leftovers(const std::string& folder);

/// Functions for folders, which throw DataErrors of one line that name the path.
/// Makes the folder and its parents, durably.
void make_folders(const std::string& path);
void move_folder(const std::string& from, const std::string& to);
/// Exchanges the names of `fresh` and `path` atomically. On file systems that do not support this,
/// there is no folder `path` for a moment.
void exchange_folders(const std::string& fresh, const std::string& path);
void remove_folder(const std::string& path) noexcept;
bool is_folder(const std::string& path) noexcept;

}  // namespace braid
