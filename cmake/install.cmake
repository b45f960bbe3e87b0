# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts below the prefix. The CMake package and the pkg-config file find the
# rest relative to themselves, so the installed tree may be moved.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/quire)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(TARGETS quire EXPORT quire-targets FILE_SET HEADERS)
install(EXPORT quire-targets NAMESPACE quire:: DESTINATION ${package_dir})
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/quire-config.cmake.in ${PROJECT_BINARY_DIR}/quire-config.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/quire-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/quire-config.cmake
              ${PROJECT_BINARY_DIR}/quire-config-version.cmake DESTINATION ${package_dir})

file(RELATIVE_PATH QUIRE_PC_TO_PREFIX /${pkgconfig_dir} /)
if(BUILD_SHARED_LIBS)
  set(QUIRE_PC_LIBS "-lquire")
else()
  set(QUIRE_PC_LIBS "-lquire -lstdc++ -lcrypto -pthread -ldl")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/quire.pc.in ${PROJECT_BINARY_DIR}/quire.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/quire.pc DESTINATION ${pkgconfig_dir})

if(TARGET quire_cli)
  install(TARGETS quire_cli)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
foreach(document README.md ARCHITECTURE.md)
  install(FILES ${PROJECT_SOURCE_DIR}/${document} DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)
endforeach()
