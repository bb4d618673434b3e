#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Files as braid reads and writes them: whole, in pieces, or replaced atomically. No file is
/// mapped: the system ends a process that touches a map of a file which has become shorter
/// (SIGBUS). Every failure is a DataError of one line that names the path, the system call and the
/// system's reason.
namespace braid {

/// Opens a regular file by open(2) with these flags and, for O_CREAT, the rights 0666 (less the
/// umask). Anything else under this name is refused without waiting for it: a folder, a device, a
/// pipe (whose open would wait for the other end). Returns the descriptor, which the caller closes,
/// or -1 if the flags have O_EXCL and the name is taken. If this process has as many files open as
/// its soft limit allows (often 1,024), raises this limit to the hard one.
int open_regular_file(const std::string& path, int flags);

/// A regular file that is read in pieces, from any place and any thread; it stays open. That it has
/// become shorter since it was opened is an error; what was appended is not read. Not movable.
class PieceFile {
 public:
  explicit PieceFile(std::string path);
  PieceFile(const PieceFile&) = delete;
  PieceFile& operator=(const PieceFile&) = delete;
  ~PieceFile();

  /// When it was opened.
  int64_t size_bytes() const { return size_bytes_; }
  const std::string& path() const { return path_; }
  /// Fills `out` with the bytes from `offset_bytes` on. Throws DataError if they cannot be read or
  /// the file ends before.
  void read_at(int64_t offset_bytes, std::span<std::byte> out) const;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_bytes_ = 0;
};

/// A regular file into which pieces are written, at any place and from any thread or process; it
/// stays open. What was never written inside it reads as zeros. Not movable.
class PlacedFile {
 public:
  enum class Mode : uint8_t {
    kCreate,  ///< the file must not exist
    kOpen,    ///< the file must exist
  };

  /// Throws DataError if the file cannot be opened, or exists and is to be created.
  PlacedFile(std::string path, Mode mode);
  PlacedFile(const PlacedFile&) = delete;
  PlacedFile& operator=(const PlacedFile&) = delete;
  ~PlacedFile();

  const std::string& path() const { return path_; }
  void write_at(int64_t offset_bytes, std::span<const std::byte> bytes) const;

 private:
  std::string path_;
  int fd_ = -1;
};

/// Reads a part of a file from front to back, in steps of any size, with few calls of the system.
/// Memory: `kPartBytes`, or the part if it is smaller. Not thread-safe.
class SequentialReader {
 public:
  static constexpr int64_t kPartBytes = int64_t{1} << 18;

  /// The bytes [begin_bytes, end_bytes) of `file`, which must outlive this object.
  SequentialReader(const PieceFile& file, int64_t begin_bytes, int64_t end_bytes);
  /// All of it.
  explicit SequentialReader(const PieceFile& file) : SequentialReader(file, 0, file.size_bytes()) {}

  /// The next bytes, at most `kPartBytes`, valid until the next call; empty at the end.
  std::span<const std::byte> next();
  /// Fills `out` with the next bytes, which the part must still have.
  void read(std::span<std::byte> out);

 private:
  void fill();

  const PieceFile& file_;
  int64_t at_bytes_;  // of the first byte that is not in `ready_` and not read
  int64_t end_bytes_;
  std::vector<std::byte> buffer_;
  std::span<const std::byte> ready_;  // of `buffer_`: not handed out yet
};

/// Replaces `path` in one instant: bytes go to a temporary file in the same folder, and `commit`
/// makes them durable and renames it over `path`. A reader sees the old file or all of the new one.
/// Without `commit` (an error, an exception) the destructor removes the temporary file; a killed
/// process leaves only a file named *.tmp. If `path` is a symbolic link, the link itself is
/// replaced. Not thread-safe; two writers of one path do not disturb each other, the last commit
/// wins.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Appends; buffered, so an error may surface at a later write or at `commit`.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Makes everything written so far durable without publishing it: after it, `commit` needs no
  /// more disk space.
  void sync();
  /// `sync`, rename, fsync of the folder. May be called once; nothing can be written
  /// afterwards.
  void commit();

  const std::string& path() const { return path_; }
  /// All bytes handed to `write` so far.
  int64_t size_bytes() const { return size_bytes_; }

 private:
  void write_through(std::span<const std::byte> bytes);
  void flush();
  void sync_data();

  std::string path_;
  std::string temporary_path_;  // empty once committed or moved from
  std::vector<std::byte> buffer_;
  int64_t size_bytes_ = 0;
  int64_t unsynced_bytes_ = 0;
  int fd_ = -1;
};

/// All of a regular file. Throws DataError if it cannot be read or has more than
/// `max_bytes` bytes.
std::string read_text_file(const std::string& path, int64_t max_bytes);

/// Replaces `path` by these bytes as AtomicFile does.
void write_file_atomically(const std::string& path, std::span<const std::byte> bytes);
void write_file_atomically(const std::string& path, std::string_view text);

/// Makes renames, creations and removals inside this folder durable (fsync of the folder).
void sync_directory(const std::string& path);

}  // namespace braid
