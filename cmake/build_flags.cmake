# SPDX-License-Identifier: Apache-2.0
# How every target of quire is compiled. No -march or -m flag stands here or anywhere else: code for
# one instruction set lives in a target region, so that no inline function of the standard library
# is compiled for an instruction set that the machine may lack.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

set(QUIRE_WARNINGS
    -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wundef -Wvla
    -Wimplicit-fallthrough -Wformat=2 -Wcast-align -Wextra-semi)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND QUIRE_WARNINGS -Wduplicated-cond -Wlogical-op -Wsuggest-override)
  if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # GCC 12 reports its own AVX-512 headers as uninitialized and std::string's operator+ as
    # overlapping. Clang checks the same sources for real uninitialized reads.
    list(APPEND QUIRE_WARNINGS -Wno-uninitialized -Wno-maybe-uninitialized -Wno-restrict)
  endif()
elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND QUIRE_WARNINGS -Wshadow-all -Winconsistent-missing-override -Wno-psabi)
  if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    list(APPEND QUIRE_WARNINGS -Wreserved-identifier)
  endif()
endif()

# Sanitizers change the ABI of every object, so they hold for the whole build.
if(QUIRE_SANITIZE)
  set(sanitize_flags -fsanitize=${QUIRE_SANITIZE} -fno-sanitize-recover=all)
  add_compile_options(${sanitize_flags} -fno-omit-frame-pointer)
  add_link_options(${sanitize_flags})
endif()

# Applies the language level, warnings and visibility of quire to <target>. LIBRARY adds what only
# the library's own sources must hold: a 64-bit offset never becomes an int unseen.
function(quire_target_flags target)
  cmake_parse_arguments(arg "LIBRARY" "" "" ${ARGN})
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(
    ${target}
    PROPERTIES CXX_EXTENSIONS OFF
               CXX_VISIBILITY_PRESET hidden
               C_VISIBILITY_PRESET hidden
               VISIBILITY_INLINES_HIDDEN ON)
  # Without contraction a*b + c means the same in every function, whatever its target region;
  # kernels ask for fused multiply-add by its intrinsic.
  target_compile_options(${target} PRIVATE -ffp-contract=off)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${QUIRE_WARNINGS}>)
  if(arg_LIBRARY)
    target_compile_options(${target} PRIVATE -Wconversion)
  endif()
  if(QUIRE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
