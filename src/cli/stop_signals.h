#pragma once

namespace braid {

/// After this call, SIGTERM, SIGINT and SIGHUP request a clean end (`stop_requested`); the second
/// signal ends the process at once, as usual. Ignored signals (nohup, a shell's background job)
/// stay ignored.
void install_stop_signals();

/// Whether a signal has come since `install_stop_signals`.
bool stop_requested();

}  // namespace braid
