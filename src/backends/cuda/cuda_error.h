#pragma once

#include <cuda_runtime_api.h>

/// Errors of CUDA libraries become DeviceError with the text of the call and the library's reason.
/// Each library has its overload, so that the one macro serves all; cuBLAS and cuDNN status codes
/// are declared in their own headers, which only the files that call them include.
namespace braid {

/// Throws DeviceError "CALL: reason (cudaErrorName)" unless `status` is cudaSuccess.
void cuda_check(cudaError_t status, const char* call);

/// For destructors, where there is nobody to tell: the error, if it is sticky, meets the next call.
inline void ignore_error(cudaError_t) noexcept {}

}  // namespace braid

/// Calls once, and checks what it returns. A macro, because only a macro has the call's text.
#define BRAID_CUDA_CHECK(call) ::braid::cuda_check((call), #call)
