# SPDX-License-Identifier: Apache-2.0
# Compiles through ccache where it is installed, unless the caller chose a launcher. Paths below the
# source tree are taken relative, so that a fresh clone elsewhere finds what another one compiled.
if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(QUIRE_CCACHE ccache)
  mark_as_advanced(QUIRE_CCACHE)
  if(QUIRE_CCACHE)
    set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1)
    if(QUIRE_PRECOMPILE)
      list(APPEND launcher CCACHE_SLOPPINESS=pch_defines,time_macros)
      add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,Clang>:SHELL:-Xclang -fno-pch-timestamp>")
    endif()
    list(APPEND launcher ${QUIRE_CCACHE})
    set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
  endif()
endif()
