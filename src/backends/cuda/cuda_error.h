#pragma once

#include <cuda_runtime_api.h>

/// Converts errors of CUDA libraries to DeviceError with the text of the call and the library's
/// reason. Each library has its overload, so that one macro works for all; cuBLAS and cuDNN status
/// codes are declared in their own headers, which only the files that call them include.
namespace braid {

/// Throws DeviceError "CALL: reason (cudaErrorName)" unless `status` is cudaSuccess.
void cuda_check(cudaError_t status, const char* call);

/// For destructors, which cannot report errors: a sticky error is returned again by the next call.
inline void ignore_error(cudaError_t) noexcept {}

}  // namespace braid

/// Evaluates the call once, and checks its result. A macro, because only a macro has the call's
/// text.
#define BRAID_CUDA_CHECK(call) ::braid::cuda_check((call), #call)
