#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// The names of checkpoints inside their folder. Everything that begins with a dot or is no folder
/// is not a checkpoint.
namespace braid {

inline constexpr std::string_view kLatestFile = "latest";

struct CheckpointEntry {
  int64_t step = 0;
  std::string path;
};

/// "step_00000100"
std::string checkpoint_name(int64_t step);

/// All checkpoints in the folder by ascending step; none if there is no folder. Throws DataError if
/// it cannot be read.
std::vector<CheckpointEntry> list_checkpoints(const std::string& folder);

/// A path in `folder` that does not exist yet, for something that is being written ("tmp") or
/// removed ("trash"): ".step_00000100.tmp-PID-0".
std::string transient_path(const std::string& folder, const std::string& name,
                           std::string_view purpose);

/// Removes what earlier saves of this process, or of processes that run no more, have left under
/// transient names. What cannot be removed stays for the next time.
void remove_leftovers(const std::string& folder);

/// Folders, with errors as DataErrors of one line that name the path.
void make_folders(const std::string& path);
void move_folder(const std::string& from, const std::string& to);
/// `fresh` gets the name `path`, in one instant; what was there has the name of `fresh` afterwards.
/// File systems that cannot do that lose the old folder for a moment before the new one comes.
void exchange_folders(const std::string& fresh, const std::string& path);
void remove_folder(const std::string& path) noexcept;
bool is_folder(const std::string& path) noexcept;

}  // namespace braid
