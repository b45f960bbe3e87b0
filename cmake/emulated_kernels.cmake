# SPDX-License-Identifier: Apache-2.0
# GPU kernels for the emulator (docs/gpu_emulator.md).

# quire_add_emulated_kernels(<target> SOURCES <file>... [LIBS <target>...])
# An object library of sources that hold kernels, and may hold host code too. Link it to a program
# directly: only then its objects come along. In builds without a sanitizer every load and store
# passes through the emulator; sanitizer builds check them their own way.
function(quire_add_emulated_kernels target)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBS" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "quire_add_emulated_kernels needs SOURCES; not understood: "
                        "${arg_UNPARSED_ARGUMENTS}")
  endif()
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${arg_SOURCES})
  quire_target_flags(${target})
  target_link_libraries(${target} PUBLIC quire_emulator ${arg_LIBS})
  if(NOT QUIRE_SANITIZE)
    target_link_libraries(${target} PUBLIC quire_emulator_hooks)
    # Lines for the reports; copies that the hooks see because they stay calls.
    target_compile_options(
      ${target} PRIVATE -fsanitize=thread -g1 -fno-builtin-memcpy -fno-builtin-memmove
                        -fno-builtin-memset $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  elseif(QUIRE_SANITIZE MATCHES "thread")
    target_compile_options(${target} PRIVATE -fno-sanitize=thread)
  endif()
endfunction()
