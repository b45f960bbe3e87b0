# SPDX-License-Identifier: Apache-2.0
# The version stands once, in a public header; the build reads it from there.

# Sets <variable> to "major.minor.patch" as <header> defines it; a changed header reconfigures.
function(quire_read_version header variable)
  set(path ${CMAKE_CURRENT_SOURCE_DIR}/${header})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  set(numbers "")
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS ${path} line REGEX "^#define QUIRE_VERSION_${part} [0-9]+$")
    if(NOT line MATCHES "([0-9]+)$")
      message(FATAL_ERROR "${header} does not define QUIRE_VERSION_${part}")
    endif()
    list(APPEND numbers ${CMAKE_MATCH_1})
  endforeach()
  list(JOIN numbers "." version)
  set(${variable} ${version} PARENT_SCOPE)
endfunction()
