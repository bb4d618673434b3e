#pragma once

#include <string>
#include <string_view>

namespace braid {

/// The 32 bytes of a text's SHA-256 (FIPS 180-4). For a few kilobytes: it is not fast.
std::string sha256(std::string_view text);

/// A code of 32 bytes that only those who know `key` can compute: HMAC with SHA-256 (RFC 2104).
std::string hmac_sha256(std::string_view key, std::string_view message);

/// Whether both are equal, in a time that does not tell where they differ.
bool equal_secrets(std::string_view one, std::string_view other);

/// `count` random bytes from the system, which nobody can predict. At most 256. Throws DeviceError.
std::string random_bytes(size_t count);

/// Two lower-case digits per byte.
std::string to_hex(std::string_view bytes);

}  // namespace braid
