// SPDX-License-Identifier: Apache-2.0
// What follows the keys: splits joined, rows normalised, rounded and stored.

// Adds the states of other keys to `total`, row by row.
void merge_states(const RowStates& part, std::int64_t num_rows, const RowStates& total) noexcept {
  for (std::int64_t r = 0; r < num_rows; ++r) {
    if (part.max(r) == kNegativeInfinity) continue;
    const float max = std::max(part.max(r), total.max(r));
    const float part_factor = std::exp2(part.max(r) - max);
    const float total_factor = std::exp2(total.max(r) - max);
    total.max(r) = max;
    total.sum(r) = total.sum(r) * total_factor + part.sum(r) * part_factor;
    float* o = total.o(r);
    const float* other = part.o(r);
    for (std::int64_t d = 0; d < total.value_dim; d += kLanes) {
      const Vec kept = mul(load(o + d), set1(total_factor));
      store(o + d, fma(load(other + d), set1(part_factor), kept));
    }
  }
}

// factor * o as elements of out.
template <class T>
inline void store_scaled(const float* o, std::int64_t dims, float factor, T* out) noexcept {
  std::int64_t d = 0;
  for (; d + kLanes <= dims; d += kLanes) store_row(out + d, mul(load(o + d), set1(factor)));
  if (d == dims) return;
  T rest[kLanes];
  store_row(rest, mul(load(o + d), set1(factor)));
  for (std::int64_t i = 0; d + i < dims; ++i) out[d + i] = rest[i];
}

// What the rows of a state are multiplied with to become out; writes lse where it is asked for.
inline float finish_row(const AttendCall& call, const RowStates& states, std::int64_t r,
                        std::int64_t token, std::int64_t head) noexcept {
  constexpr float kLn2 = 0.693147180559945F;
  const MutableTensorView& lse_out = call.output.lse;
  const bool has_sinks = !call.params.sinks.empty();
  const bool empty = states.max(r) == kNegativeInfinity;
  float factor = empty ? 0.0F : 1.0F / states.sum(r);
  float lse = kNegativeInfinity;
  if ((lse_out.present() || has_sinks) && !empty) {
    lse = (states.max(r) + std::log2(states.sum(r))) * kLn2;
  }
  if (has_sinks && !empty) factor /= 1.0F + std::exp(call.params.sinks[head] - lse);
  if (lse_out.present()) {
    static_cast<float*>(lse_out.data)[token * lse_out.strides[0] + head * lse_out.strides[1]] = lse;
  }
  return factor;
}

void store_rows(const AttendCall& call, std::int64_t sequence, std::int64_t kv_head,
                const IndexRange& rows, const RowStates& states) noexcept {
  const std::int64_t group = call.spec.head_group();
  const MutableTensorView& out = call.output.out;
  [[maybe_unused]] const bool known =
      dispatch_dtype_among<float, BFloat16, Float16>(out.dtype, [&]<class T>() {
        std::int64_t token = call.batch.queries.begins[sequence] + rows.begin / group;
        std::int64_t in_group = rows.begin % group;
        for (std::int64_t r = 0; r < rows.size(); ++r) {
          const std::int64_t head = kv_head * group + in_group;
          const float factor = finish_row(call, states, r, token, head);
          store_scaled(states.o(r), call.spec.value_dim, factor,
                       static_cast<T*>(out.data) + token * out.strides[0] + head * out.strides[1]);
          if (++in_group < group) continue;
          in_group = 0;
          ++token;
        }
      });
}
