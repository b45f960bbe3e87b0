# SPDX-License-Identifier: Apache-2.0
# Finds libtorch, first found first taken:
#   1. QUIRE_TORCH_DIR, the torch folder of a wheel or an unpacked libtorch: taken without question
#   2. with QUIRE_FIND_TORCH: Torch_DIR, CMAKE_PREFIX_PATH and the prefixes of the system
#   3. with QUIRE_FIND_TORCH: the torch of QUIRE_TORCH_PYTHON or python3, asked where it lies, not
#      imported
# What is found by 2 and 3 must be of a release that the adapter was tested with, or newer, and must
# link; a line says what is taken, and why something is not. Torch's own package is not used: it
# wants the toolkit of CUDA where torch was built with it.
set(QUIRE_TORCH_MIN_VERSION 2.11)

# Sets <result> to the reason why a libtorch cannot be used, or to "".
function(quire_torch_reason include lib result)
  set(${result} "" PARENT_SCOPE)
  set(header ${include}/torch/csrc/api/include/torch/version.h)
  file(GLOB headers ${header} ${include}/torch/headeronly/version.h)
  set(version "")
  foreach(file IN LISTS headers)
    file(STRINGS ${file} lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    if(lines MATCHES "MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+)")
      set(version ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3})
    endif()
  endforeach()
  if(NOT version)
    set(${result} "its version is not known" PARENT_SCOPE)
    return()
  endif()
  if(version VERSION_LESS QUIRE_TORCH_MIN_VERSION)
    set(${result} "its version ${version} is below ${QUIRE_TORCH_MIN_VERSION}" PARENT_SCOPE)
    return()
  endif()
  try_compile(
    links SOURCE_FROM_CONTENT torch_links.cc
    "#include <c10/util/Exception.h>
     int main() { return static_cast<int>(c10::Error({__func__, __FILE__, 1u}, std::string()).msg().size()); }"
    CMAKE_FLAGS -DINCLUDE_DIRECTORIES=${include}
    LINK_OPTIONS -Wl,-rpath-link,${lib}
    LINK_LIBRARIES ${lib}/libc10.so CXX_STANDARD 20 NO_CACHE)
  if(NOT links)
    set(${result} "a program does not link with it" PARENT_SCOPE)
  endif()
endfunction()

# Takes a libtorch for the caller of quire_find_torch if it can be used.
macro(quire_try_torch include lib where)
  if(NOT QUIRE_TORCH_LIB AND EXISTS ${lib}/libtorch_cpu.so AND EXISTS ${include}/ATen/ATen.h)
    quire_torch_reason(${include} ${lib} reason)
    if(reason)
      message(STATUS "torch: ${lib} (${where}) is not taken: ${reason}")
    else()
      message(STATUS "torch: found by ${where}: ${lib}")
      set(QUIRE_TORCH_INCLUDE ${include})
      set(QUIRE_TORCH_LIB ${lib})
    endif()
  endif()
endmacro()

# Sets QUIRE_TORCH_INCLUDE and QUIRE_TORCH_LIB, or leaves them empty and says why.
function(quire_find_torch)
  set(QUIRE_TORCH_INCLUDE "")
  set(QUIRE_TORCH_LIB "")
  if(QUIRE_TORCH_DIR)
    if(EXISTS ${QUIRE_TORCH_DIR}/lib/libtorch_cpu.so)
      set(QUIRE_TORCH_INCLUDE ${QUIRE_TORCH_DIR}/include)
      set(QUIRE_TORCH_LIB ${QUIRE_TORCH_DIR}/lib)
      message(STATUS "torch: found by QUIRE_TORCH_DIR: ${QUIRE_TORCH_LIB}")
    else()
      message(STATUS "torch: left out, there is no libtorch_cpu.so in ${QUIRE_TORCH_DIR}/lib")
    endif()
  elseif(QUIRE_FIND_TORCH)
    if(Torch_DIR)
      get_filename_component(prefix ${Torch_DIR}/../../.. ABSOLUTE)
      quire_try_torch(${prefix}/include ${prefix}/lib Torch_DIR)
    endif()
    find_library(found_library NAMES torch_cpu PATH_SUFFIXES torch/lib NO_CACHE)
    find_path(found_include NAMES ATen/ATen.h PATH_SUFFIXES torch/include NO_CACHE)
    if(found_library AND found_include)
      get_filename_component(lib ${found_library} DIRECTORY)
      quire_try_torch(${found_include} ${lib} "CMAKE_PREFIX_PATH or the system")
    endif()
    find_program(python NAMES ${QUIRE_TORCH_PYTHON} python3 NO_CACHE)
    if(NOT QUIRE_TORCH_LIB AND python)
      execute_process(
        COMMAND ${python} -c
                "import importlib.util as u; s = u.find_spec('torch'); print(*s.submodule_search_locations if s else '')"
        OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      if(folder)
        quire_try_torch(${folder}/include ${folder}/lib ${python})
      endif()
    endif()
    if(NOT QUIRE_TORCH_LIB)
      message(STATUS "torch: left out, neither QUIRE_TORCH_DIR nor a prefix nor python3 has a "
                     "libtorch from ${QUIRE_TORCH_MIN_VERSION} on")
    endif()
  endif()
  set(QUIRE_TORCH_INCLUDE "${QUIRE_TORCH_INCLUDE}" PARENT_SCOPE)
  set(QUIRE_TORCH_LIB "${QUIRE_TORCH_LIB}" PARENT_SCOPE)
endfunction()
