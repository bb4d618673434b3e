# Warnings, sanitizers, linker and compiler cache: everything that is the same for all our targets, and for nobody else's.
# Libraries link braid_options, privately; programs link it and braid_link_options. CMake hands the link options of a
# static library's private dependencies on to whoever links the library: so those are a target of their own.
include(CheckCXXCompilerFlag)

add_library(braid_options INTERFACE)
add_library(braid_link_options INTERFACE)
# Warnings are for our own C++; nvcc passes its host compiler code that it wrote itself.
set(warnings -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers)
target_compile_options(braid_options INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${warnings}>")
target_include_directories(braid_options INTERFACE ${PROJECT_SOURCE_DIR}/src)

# GCC 12 warns of impossible overlaps inside std::string (GCC bug 105651); GCC 13 does not.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(braid_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Wno-restrict>)
endif()

# A source that is included is no header: what it hides in an unnamed namespace, only it uses.
if(BRAID_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(braid_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()

if(BRAID_WERROR)
  target_compile_options(braid_options INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>
    $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()

# One instruction set for all files, not only for the kernels: an inline function compiled twice with different
# instruction sets would make results depend on which copy the linker keeps.
if(BRAID_NATIVE)
  check_cxx_compiler_flag(-march=native BRAID_HAS_MARCH_NATIVE)
  if(BRAID_HAS_MARCH_NATIVE)
    target_compile_options(braid_options INTERFACE
      $<$<COMPILE_LANGUAGE:C,CXX>:-march=native>
      $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-march=native>)
  endif()
endif()

# The same plans, prices and simulated times from every compiler, at every level of optimisation and on processors without fused
# multiply-add. Kernels ask for it themselves.
target_compile_options(braid_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off>)

if(BRAID_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "BRAID_FUZZ needs clang (libFuzzer), not ${CMAKE_CXX_COMPILER_ID}: use the preset \"fuzz\"")
  endif()
  set(BRAID_FUZZ_OPTIONS)
  if(NOT BRAID_COVERAGE)  # with it, fuzzers only read inputs that are there
    set(BRAID_SANITIZE address,undefined)
    # libFuzzer counts which branches inputs take, and sees the values that they are compared with. Beside tests it only counts:
    # the rest would slow them.
    set(BRAID_FUZZ_OPTIONS -fsanitize=fuzzer-no-link)
    if(BRAID_TESTS)
      set(BRAID_FUZZ_OPTIONS -fsanitize-coverage=inline-8bit-counters,pc-table)
    endif()
    # No input reaches the kernels.
    set(reached $<AND:$<STREQUAL:$<TARGET_PROPERTY:TYPE>,STATIC_LIBRARY>,$<NOT:$<STREQUAL:$<TARGET_PROPERTY:NAME>,braid_cpu_kernels>>>)
    target_compile_options(braid_options INTERFACE "$<${reached}:${BRAID_FUZZ_OPTIONS}>")
  endif()
endif()

if(BRAID_COVERAGE)
  target_compile_options(braid_options INTERFACE -fprofile-instr-generate -fcoverage-mapping)
  target_link_options(braid_link_options INTERFACE -fprofile-instr-generate)
endif()

if(BRAID_SANITIZE)
  # Undefined behaviour ends the test; without -fno-sanitize-recover it would print a line and pass.
  target_compile_options(braid_options INTERFACE
    -fsanitize=${BRAID_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  target_link_options(braid_link_options INTERFACE -fsanitize=${BRAID_SANITIZE})
  # A null pointer is no less seen by the crash that AddressSanitizer reports; checks of it, of sizes and of virtual tables at each
  # access are a tenth of what the compiler does.
  if(BRAID_SANITIZE MATCHES undefined)
    target_compile_options(braid_options INTERFACE -fno-sanitize=null,object-size,vptr)
  endif()
  # What sanitizers add hides from GCC which branches set a variable: its manual names such warnings. Other builds look.
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(braid_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Wno-maybe-uninitialized>)
  endif()
endif()

# Paths below the source folder are relative for the cache, so that a second clone finds what the first compiled. Files with
# precompiled headers are found by the contents of these, as long as their sources use neither macros of time nor ones that
# the compiler did not see when it made them: sloppiness. scripts/checksum_pch.py writes the checksums (EXTSUM) of those by clang.
find_program(BRAID_CCACHE ccache)
if(BRAID_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_PCH_EXTSUM=1 CCACHE_SLOPPINESS=pch_defines,time_macros ${BRAID_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()

# By which ranks see that all run the same build (base/build_id.h). Most compilers ask for it by default.
target_link_options(braid_link_options INTERFACE -Wl,--build-id=sha1)

find_program(BRAID_MOLD mold)
if(BRAID_MOLD)
  target_link_options(braid_link_options INTERFACE -fuse-ld=mold)
endif()
