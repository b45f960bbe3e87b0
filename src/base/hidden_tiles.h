// SPDX-License-Identifier: Apache-2.0
// Some hypervisors offer AMX and hide how large its tiles are (CPUID leaf 0x1d). oneDNN, alone and
// in OpenVINO and PyTorch, then sets up no tiles and dies of the first instruction that uses one.
#pragma once

namespace quire {

// On such a machine: limits oneDNN to what comes before AMX, by its environment variable
// ONEDNN_MAX_CPU_ISA, which it reads at its first primitive; unless that or its older name
// DNNL_MAX_CPU_ISA is set. Returns whether it did, now or before. May be called by many threads at
// once; others must not be using the environment.
bool keep_onednn_from_hidden_tiles();

}  // namespace quire
