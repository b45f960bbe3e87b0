// SPDX-License-Identifier: Apache-2.0
// The calls of a step: prepare, append, attend, merge, poll.
#include <cmath>
#include <vector>

#include "capi/convert.h"
#include "capi/handles.h"
#include "capi/sized_struct.h"

namespace quire::capi {
namespace {

AttentionParams to_params(const quire_attention_params* pointer, const AttentionSpec& spec,
                          Device device) {
  const quire_attention_params given = read_optional_struct(pointer, "params");
  AttentionParams params;
  params.scale = given.scale != 0.0F
                     ? given.scale
                     : static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
  params.softcap = given.softcap;
  if (given.alibi_slopes != nullptr) {
    params.alibi_slopes = ArrayView<float>(given.alibi_slopes, spec.num_q_heads, device);
  }
  if (given.sinks != nullptr) {
    params.sinks = ArrayView<float>(given.sinks, spec.num_q_heads, device);
  }
  params.bias = to_optional_tensor(given.bias, "bias");
  return params;
}

KvSource to_source(const quire_kv_source* pointer) {
  const quire_kv_source given = read_struct(pointer, "source");
  return {to_view(given.cache, "cache"),
          {.k = to_optional_tensor(given.new_k, "new_k"),
           .v = to_optional_tensor(given.new_v, "new_v")}};
}

const PreparedBatch& ready_batch(const quire_prepared_batch* pointer) {
  const quire_prepared_batch& prepared = open(pointer, "prepared");
  require(prepared.has_batch, "prepared: no batch, because prepare was not called or has failed");
  return *prepared.prepared;
}

Stream to_stream(void* handle) {
  return {.handle = handle};
}

}  // namespace
}  // namespace quire::capi

using namespace quire::capi;

quire_status quire_prepare(quire_backend* backend, quire_prepared_batch* prepared,
                           const quire_batch* batch, void* stream) {
  return guarded([&] {
    quire::AttentionBackend& user = *open(backend, "backend").backend;
    quire_prepared_batch& filled = open(prepared, "prepared");
    filled.has_batch = false;  // whatever fails, arrays of an earlier batch are not read again
    user.prepare(*filled.prepared, to_batch(batch), to_stream(stream));
    filled.has_batch = true;
  });
}

quire_status quire_append(quire_backend* backend, const quire_prepared_batch* prepared,
                          const quire_tensor* k, const quire_tensor* v,
                          const quire_kv_cache_view* cache, void* stream) {
  return guarded([&] {
    quire::AttentionBackend& user = *open(backend, "backend").backend;
    const quire::PreparedBatch& ready = ready_batch(prepared);
    user.append(ready, {.k = to_tensor(k, "k"), .v = to_optional_tensor(v, "v")},
                to_view(cache, "cache"), to_stream(stream));
  });
}

quire_status quire_attend(quire_backend* backend, const quire_prepared_batch* prepared,
                          const quire_attention_params* params, const quire_tensor* q,
                          const quire_kv_source* source, const quire_attention_output* output,
                          void* stream) {
  return guarded([&] {
    quire::AttentionBackend& user = *open(backend, "backend").backend;
    const quire::PreparedBatch& ready = ready_batch(prepared);
    user.attend(ready, to_params(params, ready.spec(), user.memory().device()), to_tensor(q, "q"),
                to_source(source), to_output(output), to_stream(stream));
  });
}

quire_status quire_merge(quire_backend* backend, const quire_partial* partials,
                         int64_t num_partials, const float* sinks,
                         const quire_attention_output* output, void* stream) {
  return guarded([&] {
    quire::AttentionBackend& user = *open(backend, "backend").backend;
    std::vector<quire::Partial> parts;
    for_each_struct(partials, num_partials, "partials",
                    [&](std::int64_t /*i*/, const quire_partial& given) {
                      parts.push_back({.out = to_tensor(given.out, "out of a partial"),
                                       .lse = to_tensor(given.lse, "lse of a partial")});
                    });
    const quire::AttentionOutput where = to_output(output);
    quire::ArrayView<float> heads;
    if (sinks != nullptr) {
      quire::require(where.out.rank == 3, "out: has 3 axes, not ", where.out.rank);
      heads = quire::ArrayView<float>(sinks, where.out.shape[1], user.memory().device());
    }
    user.merge(parts, heads, where, to_stream(stream));
  });
}

quire_status quire_poll(quire_backend* backend, quire_prepared_batch* prepared) {
  quire::Status status;
  const quire_status called = guarded([&] {
    quire::AttentionBackend& user = *open(backend, "backend").backend;
    status = user.poll(*open(prepared, "prepared").prepared);
  });
  return called != QUIRE_OK ? called : report_status(status);
}
