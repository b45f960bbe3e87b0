# SPDX-License-Identifier: Apache-2.0
# Headers that a compiler reads once for a target instead of once for each of its sources. It hides
# a missing #include, which the builds without it find.
option(QUIRE_PRECOMPILE "Precompile the headers of large targets" OFF)

# quire_precompile(<target> [HEADER]...): those of the library, and more.
function(quire_precompile target)
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources num_sources)
  if(NOT QUIRE_PRECOMPILE OR num_sources LESS 6)
    return()
  endif()
  set(headers
      <algorithm> <array> <cstddef> <cstdint> <cstring> <functional> <limits> <memory> <optional>
      <span> <string> <string_view> <utility> <vector> ${PROJECT_SOURCE_DIR}/include/quire/quire.hpp
      ${ARGN})
  list(TRANSFORM headers REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:\\1>")
  target_precompile_headers(${target} PRIVATE ${headers})
endfunction()
