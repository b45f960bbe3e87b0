// SPDX-License-Identifier: Apache-2.0
// Enumerators as Python writes them: lower-case words, as dtype_name and its siblings print them.
// An unknown word is an Error that lists the known ones.
#pragma once

#include <string>
#include <string_view>

#include "quire/attention_spec.h"
#include "quire/block_manager.h"
#include "quire/kv_cache.h"

namespace quire::python {

DType parse_dtype(std::string_view name);              // "f32", "bf16", "float8_e4m3fn", ...
KvOrder parse_order(std::string_view name);            // "block_token_head_dim", ...
KvPacking parse_packing(std::string_view name);        // "kv_first", ...
Alignment parse_alignment(std::string_view name);      // "aligned", "unaligned"
ScaleGranularity parse_scales(std::string_view name);  // "none", "per_tensor", ...
KvLayoutId parse_layout(std::string_view name);        // "plain", "pair_tiled", "private_300"

const char* alignment_name(Alignment alignment) noexcept;
const char* scales_name(ScaleGranularity scales) noexcept;
std::string layout_name(KvLayoutId layout);
const char* admit_status_name(AdmitStatus status) noexcept;

}  // namespace quire::python
