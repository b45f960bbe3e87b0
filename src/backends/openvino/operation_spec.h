// SPDX-License-Identifier: Apache-2.0
// What of a spec the operation can do, and how: pure functions, no OpenVINO.
//
// A level says in what it computes. At "bf16" a spec of bf16 queries over bf16 or 8-bit K and V
// runs in bf16; everything else, and everything at "f32", in f32. A bf16 cache of a spec that
// computes in f32 holds its numbers as f32, which loses nothing: the operation has no mixed form.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backends/openvino/paged_attention.h"
#include "quire/attention_spec.h"
#include "quire/kv_cache.h"

namespace quire::openvino {

enum class Level : std::uint8_t { kF32, kBF16 };

const char* level_name(Level level) noexcept;

// Private layouts, one for each element of the cache tensors.
KvLayoutId layout_id(CacheElement element) noexcept;
std::optional<CacheElement> element_of(KvLayoutId layout) noexcept;

// The model of a spec, without sinks. REQUIRES: refusals(spec) is empty but for its layout.
ModelKey model_key(const AttentionSpec& spec, Level level);

// Every reason why the operation cannot do it; the layout of the cache is not looked at.
std::vector<std::string> refusals(const AttentionSpec& spec, bool has_sinks);

// K of all blocks, then V of all blocks, as two dense tensors of the form.
KvLayout cache_layout(CacheElement element, const CacheForm& form);

}  // namespace quire::openvino
