// SPDX-License-Identifier: Apache-2.0
// Structs of the C interface to the types of C++ and back. Throws naming the field.
#pragma once

#include <vector>

#include "capi/sized_struct.h"
#include "quire/attention_spec.h"
#include "quire/backend.h"
#include "quire/batch.h"
#include "quire/kv_cache.h"
#include "quire/kv_step.h"
#include "quire/quire.h"

namespace quire::capi {

AttentionSpec to_spec(const quire_attention_spec* pointer);
Device to_device(std::int32_t kind, std::int32_t index, const char* what);

MutableTensorView to_tensor(const quire_tensor* pointer, const char* what);
// NULL: absent.
MutableTensorView to_optional_tensor(const quire_tensor* given, const char* what);
AttentionOutput to_output(const quire_attention_output* pointer);

BatchView to_batch(const quire_batch* pointer);
quire_batch from_batch(const BatchView& batch);
BatchBounds to_bounds(const quire_batch_bounds* pointer);

KvCacheView to_view(const quire_kv_cache_view* given, const char* what);
std::vector<KvCacheView> to_views(const quire_kv_cache_view* given, std::int64_t size,
                                  const char* what);
quire_kv_cache_view from_view(const KvCacheView& view);

// [num_copies, 2].
std::span<const BlockCopy> to_copies(const std::int32_t* copies, std::int64_t num_copies);
quire_group_copies from_copies(const GroupCopies& copies);

// A mask as specs and layer groups give it.
Mask to_mask(std::int32_t not_causal, std::int32_t has_window_left, std::int64_t window_left,
             std::int64_t chunk);

}  // namespace quire::capi
