#pragma once

#include <braid/braid.h>

#include "base/errors.h"
#include "config/run_config.h"
#include "runtime/planned_config.h"

namespace braid::api {

struct Run::State {
  RunConfig loaded;  ///< as `braid::train` takes it
  PlannedConfig planned;
};

/// Returns the result of `function`; converts braid's own errors to those of the facade.
template <class Function>
auto with_public_errors(const Function& function) {
  try {
    return function();
  } catch (const ConfigError& error) {
    throw Error(ErrorKind::kConfig, error.what());
  } catch (const DataError& error) {
    throw Error(ErrorKind::kData, error.what());
  } catch (const DeviceError& error) {
    throw Error(ErrorKind::kDevice, error.what());
  } catch (const braid::Error& error) {
    throw Error(ErrorKind::kInternal, error.what());
  }
}

}  // namespace braid::api
