// SPDX-License-Identifier: Apache-2.0
// The C interface: backends, and the calls of a step (quire/backend.h and quire/registry.h in C++):
// prepare a ragged batch once per step, then append new K and V and attend once per layer.
//
// Every precondition is checked before anything is written. `stream` is a queue of the device (a
// cudaStream_t); host backends take only NULL and have finished when a call returns. A backend may
// be used from several threads, a prepared batch from one at a time.
#pragma once

#include "quire/c/attention.h"
#include "quire/c/base.h"
#include "quire/c/batch.h"
#include "quire/c/kv_cache.h"

// NOLINTBEGIN(modernize-use-using,modernize-redundant-void-arg): also C
#ifdef __cplusplus
extern "C" {
#endif

typedef struct quire_prepared_batch quire_prepared_batch;

// Threads of the caller for a CPU backend that shall start none. `run` calls task(task_context, i)
// once for every i of [0, num_tasks), on any threads, and returns when all have returned. One run
// at a time; must not throw, panic or jump out.
typedef void (*quire_task)(void* task_context, int32_t index);
typedef struct quire_executor {
  uint32_t struct_bytes;
  uint32_t struct_version;
  void* context;  // given to run; must outlive the backend
  void (*run)(void* context, int32_t num_tasks, quire_task task, void* task_context);
  int32_t num_threads;  // at least 1: the tasks that may run at once
  int32_t reserved;     // 0
} quire_executor;

// All but `isa` are of CPU backends only; results are the same bits for all of them.
typedef struct quire_backend_options {
  uint32_t struct_bytes;
  uint32_t struct_version;
  const char* isa;  // level of a CPU backend; NULL: QUIRE_CPU_ISA, else the best
  // [num_cpus]: pins thread i to cpus[i % num_cpus]. NULL: the system moves them, unless there is
  // one for every CPU that the process may run on; those keep to one each (not if QUIRE_CPU_PIN=0).
  const int32_t* cpus;
  int64_t num_cpus;
  const quire_executor* executor;  // copied; NULL: threads of the backend's own
  int32_t num_threads;             // 0: as many as there is room for
  int32_t reserved;                // 0
} quire_backend_options;

// `options` may be NULL. The name is one of quire_info_backend: "cpu", "reference", ...
QUIRE_API quire_status quire_backend_create(const char* name, const quire_backend_options* options,
                                            quire_backend** backend);
// QUIRE_BACKEND of the environment if set, else the first that takes the spec.
QUIRE_API quire_status quire_backend_choose(const quire_attention_spec* spec,
                                            const quire_backend_options* options,
                                            quire_backend** backend);
QUIRE_API quire_status quire_backend_destroy(quire_backend* backend);

// Whether a backend takes a spec.
typedef struct quire_support {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int32_t supported;     // 1: yes
  int32_t fused_append;  // K and V are stored by quire_attend; quire_append is refused
  int32_t own_rounding;  // 8-bit K and V are rounded in a way of the backend's own
  int32_t clears_tails;  // storing overwrites the slots behind the last stored token in its block
} quire_support;
// `reasons` may be NULL; else it receives every reason why not, one a line ("" if supported), to be
// freed by quire_text_free. Fails only if the spec contradicts itself.
QUIRE_API quire_status quire_supports(const quire_backend* backend,
                                      const quire_attention_spec* spec, quire_support* support,
                                      char** reasons);
// The layout in which this backend is fastest, for spec->kv_layout of caches and batches.
QUIRE_API quire_status quire_preferred_layout(const quire_backend* backend,
                                              const quire_attention_spec* spec, int32_t* layout);

// Memory for one prepared batch at a time, of the caller, 64-byte aligned.
typedef struct quire_workspace {
  uint32_t struct_bytes;
  uint32_t struct_version;
  void* host;    // [host_bytes]
  void* device;  // [device_bytes]
  int64_t host_bytes;
  int64_t device_bytes;
} quire_workspace;
// Sets host_bytes and device_bytes, exact for these bounds, and both pointers to NULL.
QUIRE_API quire_status quire_workspace_size(const quire_backend* backend,
                                            const quire_attention_spec* spec,
                                            const quire_batch_bounds* bounds,
                                            quire_workspace* size);
// `workspace` NULL: memory of its own. Nothing is allocated afterwards.
QUIRE_API quire_status quire_prepared_batch_create(quire_backend* backend,
                                                   const quire_attention_spec* spec,
                                                   const quire_batch_bounds* bounds,
                                                   const quire_workspace* workspace,
                                                   quire_prepared_batch** prepared);
QUIRE_API quire_status quire_prepared_batch_destroy(quire_prepared_batch* prepared);

// Checks, plans and uploads. On an error the prepared batch is unusable until the next prepare. The
// arrays of the batch are read again by the calls below.
QUIRE_API quire_status quire_prepare(quire_backend* backend, quire_prepared_batch* prepared,
                                     const quire_batch* batch, void* stream);

// Stores row i of k [num_slots, num_kv_heads, head_dim] and v [num_slots, num_kv_heads, value_dim],
// f32, f16 or bf16, at slot i. With v_in_k `v` is NULL.
QUIRE_API quire_status quire_append(quire_backend* backend, const quire_prepared_batch* prepared,
                                    const quire_tensor* k, const quire_tensor* v,
                                    const quire_kv_cache_view* cache, void* stream);

// What attend reads, and new K and V that it stores first (as in quire_append; NULL: none).
typedef struct quire_kv_source {
  uint32_t struct_bytes;
  uint32_t struct_version;
  const quire_kv_cache_view* cache;
  const quire_tensor* new_k;  // [num_slots, num_kv_heads, head_dim]
  const quire_tensor* new_v;  // [num_slots, num_kv_heads, value_dim]
} quire_kv_source;

// Where a call writes. The tensors are looked at; their data is written.
typedef struct quire_attention_output {
  uint32_t struct_bytes;
  uint32_t struct_version;
  const quire_tensor* out;  // [num_tokens, num_q_heads, value_dim], out_dtype
  const quire_tensor* lse;  // [num_tokens, num_q_heads], f32, natural log; or NULL
} quire_attention_output;

// q is [num_tokens, num_q_heads, head_dim]. Writes out (and lse) of every row that belongs to a
// sequence. `params` NULL: all defaults. What is written shares no element with what is read, or
// else it is refused; tensors that only interleave are apart. Out may be q itself: the same memory
// and strides, element for element.
QUIRE_API quire_status quire_attend(quire_backend* backend, const quire_prepared_batch* prepared,
                                    const quire_attention_params* params, const quire_tensor* q,
                                    const quire_kv_source* source,
                                    const quire_attention_output* output, void* stream);

// Attention over some of the keys.
typedef struct quire_partial {
  uint32_t struct_bytes;
  uint32_t struct_version;
  const quire_tensor* out;  // [num_tokens, num_q_heads, value_dim], f32, f16 or bf16
  const quire_tensor* lse;  // [num_tokens, num_q_heads], f32, natural log, -inf: saw no key
} quire_partial;

// Attention over the union of the disjoint key sets of partials [num_partials]; `sinks` is
// [num_q_heads] or NULL. The output shares no element with a partial.
QUIRE_API quire_status quire_merge(quire_backend* backend, const quire_partial* partials,
                                   int64_t num_partials, const float* sinks,
                                   const quire_attention_output* output, void* stream);

// The first error of asynchronous work on this batch since the last poll; clears it.
QUIRE_API quire_status quire_poll(quire_backend* backend, quire_prepared_batch* prepared);

#ifdef __cplusplus
}
#endif
// NOLINTEND(modernize-use-using,modernize-redundant-void-arg)
