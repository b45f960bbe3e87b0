# SPDX-License-Identifier: Apache-2.0
# Compiles through ccache where it is installed, unless the caller chose a launcher.
if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(QUIRE_CCACHE ccache)
  mark_as_advanced(QUIRE_CCACHE)
  if(QUIRE_CCACHE)
    set(CMAKE_C_COMPILER_LAUNCHER ${QUIRE_CCACHE})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${QUIRE_CCACHE})
  endif()
endif()
