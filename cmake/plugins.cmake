# SPDX-License-Identifier: Apache-2.0
# Backends as shared objects of their own (src/registry/plugin.h). The target quire_plugins builds
# all of them; the build tree keeps them in lib/quire, where every program of it looks.
add_custom_target(quire_plugins)

# quire_add_plugin(<name> SOURCES <file>... [LIBS <target>...] [TEST])
# Builds libquire_<name>.so from its adapter and the objects of quire that it needs, exporting the
# one entry. It is installed to <libdir>/quire with the folders of its libraries as its run path.
# TEST: a fixture of a test; it goes to the test's folder and is not installed.
function(quire_add_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TEST" "" "SOURCES;LIBS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "quire_add_plugin needs a name and SOURCES; not understood: "
                        "${arg_UNPARSED_ARGUMENTS}")
  endif()
  set(target quire_${name})
  add_library(${target} MODULE ${arg_SOURCES})
  quire_target_flags(${target} LIBRARY)
  target_link_libraries(${target} PRIVATE quire_internal ${arg_LIBS})
  target_link_options(${target} PRIVATE
                      -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/plugin.map)
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS
                                                ${PROJECT_SOURCE_DIR}/cmake/plugin.map)
  if(NOT QUIRE_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,--no-undefined)
  endif()
  if(arg_TEST)
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY
                                               ${CMAKE_CURRENT_BINARY_DIR}/plugins)
    return()
  endif()
  set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY
                                             ${PROJECT_BINARY_DIR}/lib/quire
                                             INSTALL_RPATH_USE_LINK_PATH ON)
  add_dependencies(quire_plugins ${target})
  if(QUIRE_INSTALL)
    install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/quire)
  endif()
endfunction()
