// SPDX-License-Identifier: Apache-2.0
// Some hypervisors offer AMX and hide how large its tiles are (CPUID leaf 0x1d). oneDNN, alone and
// in OpenVINO and PyTorch, then sets up no tiles and dies of the first instruction that uses one.
#pragma once

namespace quire {

// On such a machine, unless the variable is set: limits oneDNN to what comes before AMX, by its
// environment variable ONEDNN_MAX_CPU_ISA, which it reads at its first primitive. Returns whether
// it did. Thread-safe; other threads must not be changing the environment.
bool keep_onednn_from_hidden_tiles();

}  // namespace quire
