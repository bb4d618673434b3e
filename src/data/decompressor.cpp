#include "data/decompressor.h"

#include <array>

#include "base/errors.h"

#ifdef BRAID_HAS_ZLIB
#include <zlib.h>
#endif
#ifdef BRAID_HAS_ZSTD
#include <zstd.h>
#endif

namespace braid {
namespace {

#ifdef BRAID_HAS_ZLIB
class GzipDecompressor final : public Decompressor {
 public:
  GzipDecompressor() {
    constexpr int kGzipOnly = 16;  // added to the window's logarithm: zlib.h, inflateInit2
    check(inflateInit2(&stream_, MAX_WBITS + kGzipOnly) == Z_OK, "inflateInit2 failed");
  }
  GzipDecompressor(const GzipDecompressor&) = delete;
  GzipDecompressor& operator=(const GzipDecompressor&) = delete;
  ~GzipDecompressor() override { inflateEnd(&stream_); }

  size_t step(std::span<const std::byte>& in, std::span<std::byte> out) override {
    if (ended_ && !in.empty()) {
      check(inflateReset(&stream_) == Z_OK, "inflateReset failed");
      ended_ = false;
    }
    if (ended_) {
      return 0;
    }
    // zlib's interface is older than const.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(in.data()));
    stream_.avail_in = static_cast<uInt>(in.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    const int result = inflate(&stream_, Z_NO_FLUSH);
    in = in.last(stream_.avail_in);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      throw BrokenStream{stream_.msg == nullptr ? "not a gzip stream" : stream_.msg};
    }
    ended_ = result == Z_STREAM_END;
    return out.size() - stream_.avail_out;
  }
  bool may_end() const override { return ended_; }

 private:
  z_stream stream_ = {};
  bool ended_ = false;
};
#endif

#ifdef BRAID_HAS_ZSTD
class ZstdDecompressor final : public Decompressor {
 public:
  ZstdDecompressor() : context_(ZSTD_createDCtx()) {
    check(context_ != nullptr, "ZSTD_createDCtx failed");
    // Files made with --long=31 need this; memory is taken only where a file asks for it.
    ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax,
                           ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
  }

  size_t step(std::span<const std::byte>& in, std::span<std::byte> out) override {
    ZSTD_inBuffer input = {in.data(), in.size(), 0};
    ZSTD_outBuffer output = {out.data(), out.size(), 0};
    const size_t result = ZSTD_decompressStream(context_.get(), &output, &input);
    if (ZSTD_isError(result) != 0) {
      throw BrokenStream{ZSTD_getErrorName(result)};
    }
    if (input.pos > 0 || output.pos > 0) {
      may_end_ = result == 0;
    }
    in = in.subspan(input.pos);
    return output.pos;
  }
  bool may_end() const override { return may_end_; }

 private:
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };

  std::unique_ptr<ZSTD_DCtx, Free> context_;
  bool may_end_ = false;
};
#endif

struct Format {
  Compression compression;
  std::string_view name;
  std::string_view package;
  std::string library;  // with its version; empty: not in this build
  std::unique_ptr<Decompressor> (*make)();
};

std::array<Format, 2> formats() {
  std::array<Format, 2> all = {Format{Compression::kGzip, "gzip", "zlib1g-dev", "", nullptr},
                               Format{Compression::kZstd, "zstd", "libzstd-dev", "", nullptr}};
#ifdef BRAID_HAS_ZLIB
  all[0].library = fmt::format("zlib {}", zlibVersion());
  all[0].make = [] { return std::unique_ptr<Decompressor>(new GzipDecompressor()); };
#endif
#ifdef BRAID_HAS_ZSTD
  all[1].library = fmt::format("libzstd {}", ZSTD_versionString());
  all[1].make = [] { return std::unique_ptr<Decompressor>(new ZstdDecompressor()); };
#endif
  return all;
}

bool begins_with(std::span<const std::byte> bytes, std::string_view magic) {
  return bytes.size() >= magic.size() &&
         std::string_view(reinterpret_cast<const char*>(bytes.data()), magic.size()) == magic;
}

/// A frame without content, with which parallel writers of zstd begin: 0x184D2A50 to 0x184D2A5F.
bool is_skippable_frame(std::span<const std::byte> bytes) {
  return bytes.size() >= 4 && begins_with(bytes.subspan(1), "\x2A\x4D\x18") &&
         (bytes[0] & std::byte{0xF0}) == std::byte{0x50};
}

}  // namespace

std::string_view compression_name(Compression compression) {
  for (const Format& format : formats()) {
    if (format.compression == compression) {
      return format.name;
    }
  }
  return "none";
}

Compression find_compression(std::span<const std::byte> first_bytes) {
  if (begins_with(first_bytes, "\x1F\x8B")) {
    return Compression::kGzip;
  }
  const bool is_zstd =
      begins_with(first_bytes, "\x28\xB5\x2F\xFD") || is_skippable_frame(first_bytes);
  return is_zstd ? Compression::kZstd : Compression::kNone;
}

std::unique_ptr<Decompressor> make_decompressor(Compression compression, const std::string& path) {
  for (const Format& format : formats()) {
    if (format.compression != compression) {
      continue;
    }
    if (format.make == nullptr) {
      throw_data_error(
          "'{}' is compressed with {}, which this build of braid does not read: apt-get install {} "
          "and build again, or decompress the file",
          path, format.name, format.package);
    }
    return format.make();
  }
  throw_internal_error("no decompressor for '{}'", path);
}

std::string describe_decompressors() {
  std::string text;
  for (const Format& format : formats()) {
    text += text.empty() ? "" : "; ";
    text +=
        format.make == nullptr
            ? fmt::format("{} missing (reads compressed text); apt-get install {} and build again",
                          format.name, format.package)
            : fmt::format("{} by {}", format.name, format.library);
  }
  return text;
}

}  // namespace braid
