// SPDX-License-Identifier: Apache-2.0
// The backend `openvino`: PagedAttention of OpenVINO on memory of quire (docs/vendor_backends.md).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "quire/registry.h"

namespace quire::openvino {

// What it computes in on this CPU, best first: "bf16" where there is hardware for it, and "f32".
std::vector<std::string> levels();

// Throws Error(kUnsupported) for threads that are not OpenVINO's own: executor and cpus.
std::unique_ptr<AttentionBackend> make_backend(const BackendOptions& options);

}  // namespace quire::openvino
