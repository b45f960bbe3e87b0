# SPDX-License-Identifier: Apache-2.0
# Prints how many kernels the plug-in holds: every one has a function of the host that launches it,
# local or not as the compiler has it. docs/gpu.md argues their number.
execute_process(COMMAND ${NM} ${LIBRARY} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL " [tTwW] _ZN5quire3gpuL?10cuda_entryI[A-Za-z0-9_]*\n" entries "${symbols}")
list(REMOVE_DUPLICATES entries)
list(LENGTH entries count)
if(count EQUAL 0)
  message(WARNING "${LIBRARY} has no kernel that could be counted")
endif()
message(STATUS "cuda: ${count} kernel instances, for ${ARCHITECTURES}")
