#pragma once

#include "support/executor_contract/buffers.h"
#include "support/executor_contract/communication.h"
#include "support/executor_contract/errors.h"
#include "support/executor_contract/order.h"
#include "support/executor_contract/steps_in_flight.h"
#include "support/executor_contract/tracing.h"

/// The contract of backends/executor.h as tests. A test program of an executor includes this header
/// and instantiates the suite:
///   INSTANTIATE_TEST_SUITE_P(Cpu, ExecutorContract, ::testing::Values(ExecutorKind{...}),
///   executor_kind_name);
