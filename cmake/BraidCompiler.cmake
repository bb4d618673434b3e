# Warnings, sanitizers, linker and compiler cache: everything that is the same for all targets.
add_library(braid_options INTERFACE)
target_compile_options(braid_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor)
target_include_directories(braid_options INTERFACE ${CMAKE_SOURCE_DIR}/src)

if(BRAID_WERROR)
  target_compile_options(braid_options INTERFACE -Werror)
endif()

if(BRAID_SANITIZE)
  target_compile_options(braid_options INTERFACE -fsanitize=${BRAID_SANITIZE} -fno-omit-frame-pointer -g1)
  target_link_options(braid_options INTERFACE -fsanitize=${BRAID_SANITIZE})
endif()

find_program(BRAID_CCACHE ccache)
if(BRAID_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${BRAID_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${BRAID_CCACHE})
endif()

find_program(BRAID_MOLD mold)
if(BRAID_MOLD)
  target_link_options(braid_options INTERFACE -fuse-ld=mold)
endif()
