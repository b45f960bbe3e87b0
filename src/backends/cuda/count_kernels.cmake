# SPDX-License-Identifier: Apache-2.0
# Prints how many kernels the plug-in holds: every one has a function of the host that launches it.
# docs/gpu.md argues their number.
execute_process(COMMAND ${NM} ${LIBRARY} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]* _ZN5quire3gpu10cuda_entryI[^\n]*" entries "${symbols}")
list(LENGTH entries count)
if(count EQUAL 0)
  message(FATAL_ERROR "${LIBRARY} holds no kernel")
endif()
message(STATUS "cuda: ${count} kernel instances, for ${ARCHITECTURES}")
