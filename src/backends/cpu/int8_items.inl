// SPDX-License-Identifier: Apache-2.0
// Items over int8 K and V: by words where their queries allow it.

// Of all heads, whichever the item has: how heads are shared out among threads must not decide how
// they are multiplied.
inline bool fits_words(const AttendCall& call, const WorkItem& item) noexcept {
  const std::int64_t dims = call.spec.head_dim;
  if (call.cache.format.layout != KvLayoutId::kPairTiled || call.cache.format.v_in_k ||
      item.rows.size() > WordDot::kMaxRows || dims > WordDot::kMaxDims) {
    return false;
  }
  const std::int64_t group = call.spec.head_group();
  const std::int64_t first_token = call.batch.queries.begins[item.sequence];
  const auto* q = static_cast<const BFloat16*>(call.q.data);
  for (std::int64_t row = item.rows.begin; row < item.rows.end; ++row) {
    const BFloat16* token = q + (first_token + row / group) * call.q.strides[0];
    for (std::int64_t h = 0; h < call.spec.num_kv_heads; ++h) {
      if (!WordDot::fits(token + (h * group + row % group) * call.q.strides[1], dims)) return false;
    }
  }
  return true;
}

// attend(items, scratch) for those that words cannot serve. REQUIRES: queries of bf16.
template <class Attend>
inline void attend_int8(const AttendCall& call, std::span<const WorkItem> items,
                        const WorkItem* next, const Scratch& scratch, Attend&& attend) noexcept {
  bool fit[kMaxGroup];
  bool all = true;
  bool none = true;
  for (std::size_t i = 0; i < items.size(); ++i) {
    fit[i] = fits_words(call, items[i]);
    all = all && fit[i];
    none = none && !fit[i];
  }
  if (all) {
    attend_items_of<WordDot, std::int8_t>(call, items, next, scratch);
  } else if (none) {
    attend(items, scratch);
  } else {
    for (std::size_t i = 0; i < items.size(); ++i) {
      const Scratch own =
          scratch_of_item(scratch, call.spec, items[i], static_cast<std::int64_t>(i));
      if (fit[i]) {
        attend_items_of<WordDot, std::int8_t>(call, items.subspan(i, 1), nullptr, own);
      } else {
        attend(items.subspan(i, 1), own);
      }
    }
  }
}
