#pragma once

#include <string>
#include <string_view>

#include "base/env.h"
#include "launch/environment/find_launch.h"

namespace braid {

/// The variables by which a user gives the ranks of a run their secret, under another launcher
/// than `braid train`: a file that only the user can read, or the secret itself.
inline constexpr std::string_view kSecretFileVariable = "BRAID_SECRET_FILE";
inline constexpr std::string_view kSecretVariable = "BRAID_SECRET";

/// The secret that these variables give, without blanks around it; empty if none is set. Throws
/// ConfigError if both are set, if it is shorter than 16 bytes or longer than 1024, or if the file
/// cannot be read, or can be read by other users (as ssh refuses such keys). No message contains
/// the secret.
std::string read_run_secret(const EnvLookup& lookup = process_environment());

/// Throws ConfigError if other hosts can connect to the ranks of that launch and it has no secret.
void check_secret(const Launch& launch);

}  // namespace braid
