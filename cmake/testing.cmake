# SPDX-License-Identifier: Apache-2.0
# One call per test binary. Every entry leaves its case counts and skip reasons as XML in
# <build>/results/<name>.xml, where tools/test_summary.py adds them up.

# Optimizing what gtest's macros become takes compilers longer than running it as it is. The rest of
# a test program is optimized, and so are the tests that compute more than they compare.
set(QUIRE_COMPUTING_TESTS
    append_test.cc
    emulated_cpu_test.cc
    engine_random_test.cc
    engine_speculation_test.cc
    kv_copy_test.cc
    number_formats_test.cc
)
function(quire_quick_to_compile target)
  target_compile_options(${target} PRIVATE -O0)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(GET source FILENAME name)
    if(name MATCHES "\\.cc?$" AND (NOT name MATCHES "_test\\.cc$" OR name IN_LIST QUIRE_COMPUTING_TESTS))
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS $<IF:$<CONFIG:Debug>,-O1,-O2>)
      set_property(SOURCE ${source} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
  quire_precompile(${target} <gmock/gmock.h> <gtest/gtest.h>)
endfunction()

# quire_add_test(NAME <name> SOURCES <file>... [LIBS <target>...] [LABELS <label>...]
#                [TIMEOUT <seconds>] [ARGS <argument>...] [ENVIRONMENT <NAME=value>...])
# Builds <name> from the sources with gtest and gmock and registers it. Its first label is its kind.
function(quire_add_test)
  cmake_parse_arguments(arg "" "NAME;TIMEOUT" "SOURCES;LIBS;LABELS;ARGS;ENVIRONMENT" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_SOURCES)
    message(FATAL_ERROR "quire_add_test needs NAME and SOURCES; not understood: "
                        "${arg_UNPARSED_ARGUMENTS}")
  endif()
  add_executable(${arg_NAME} ${arg_SOURCES})
  quire_target_flags(${arg_NAME})
  target_include_directories(${arg_NAME} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${arg_NAME} PRIVATE quire_internal ${arg_LIBS} GTest::gmock_main)
  quire_quick_to_compile(${arg_NAME})
  quire_add_test_run(NAME ${arg_NAME} TARGET ${arg_NAME} TIMEOUT ${arg_TIMEOUT}
                     LABELS ${arg_LABELS} ARGS ${arg_ARGS} ENVIRONMENT ${arg_ENVIRONMENT})
endfunction()

# Registers one more run of a test binary, under its own name, labels and environment.
function(quire_add_test_run)
  cmake_parse_arguments(arg "" "NAME;TARGET;TIMEOUT" "LABELS;ARGS;ENVIRONMENT" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 900)
  endif()
  add_test(NAME ${arg_NAME}
           COMMAND ${arg_TARGET} --gtest_output=xml:${PROJECT_BINARY_DIR}/results/${arg_NAME}.xml
                   ${arg_ARGS}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${arg_NAME} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT}
                                              ENVIRONMENT "${arg_ENVIRONMENT}")
  # What the jobs of other compilers and sanitizers run by these labels, they must have built.
  # `without_tsan` is what one thread does, or what only counts.
  if(QUIRE_SANITIZE MATCHES thread AND "without_tsan" IN_LIST arg_LABELS)
    return()
  endif()
  if("unit" IN_LIST arg_LABELS OR "smoke" IN_LIST arg_LABELS)
    add_dependencies(host_tests ${arg_TARGET})
  endif()
endfunction()

# Registers a script that exits 77 after a line "SKIP: reason" where it cannot run on this machine.
# quire_add_script_test(NAME <name> COMMAND <command>... [LABELS <label>...] [TIMEOUT <seconds>])
function(quire_add_script_test)
  cmake_parse_arguments(arg "" "NAME;TIMEOUT" "COMMAND;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 900)
  endif()
  add_test(NAME ${arg_NAME} COMMAND ${arg_COMMAND} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${arg_NAME} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT}
                                              SKIP_RETURN_CODE 77)
endfunction()
