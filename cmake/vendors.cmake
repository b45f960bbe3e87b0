# SPDX-License-Identifier: Apache-2.0
# Finds the libraries of vendors. Sets QUIRE_VENDOR_PACKAGES to the site-packages folder of the
# environment that tools/bootstrap made, unless the caller names one; a system's own are found too.
set(QUIRE_VENDOR_PACKAGES "" CACHE PATH "A site-packages folder with the wheels of vendors")
if(NOT QUIRE_HOST_ONLY AND NOT QUIRE_VENDOR_PACKAGES AND PROJECT_IS_TOP_LEVEL)
  execute_process(
    COMMAND ${PROJECT_SOURCE_DIR}/tools/bootstrap --print-venv vendors
    OUTPUT_VARIABLE environment OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(GLOB QUIRE_VENDOR_PACKAGES ${environment}/lib/python3*/site-packages)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
                                         ${PROJECT_SOURCE_DIR}/tools/requirements-vendors.txt)
endif()
