// SPDX-License-Identifier: Apache-2.0
// Copies of blocks, and memory and streams of a device.
#include "capi/convert.h"
#include "capi/handles.h"
#include "capi/sized_struct.h"

namespace quire::capi {
namespace {

using CopyCall = void (AttentionBackend::*)(std::span<const KvCacheView>,
                                            std::span<const KvCacheView>,
                                            std::span<const BlockCopy>, Stream);

quire_status call_copy(CopyCall call, quire_backend* backend, const quire_kv_cache_view* src,
                       const quire_kv_cache_view* dst, std::int64_t num_layers,
                       const std::int32_t* copies, std::int64_t num_copies, void* stream) {
  return guarded([&] {
    AttentionBackend& user = *open(backend, "backend").backend;
    (user.*call)(to_views(src, num_layers, "source views"),
                 to_views(dst, num_layers, "destination views"), to_copies(copies, num_copies),
                 Stream{.handle = stream});
  });
}

DeviceMemory& memory_of(quire_backend* backend) {
  return open(backend, "backend").backend->memory();
}

void require_memory(const void* data, std::int64_t size_bytes, const char* what) {
  require_array(static_cast<const char*>(data), size_bytes, what);
}

}  // namespace
}  // namespace quire::capi

using namespace quire::capi;

quire_status quire_copy_blocks(quire_backend* backend, const quire_kv_cache_view* src,
                               const quire_kv_cache_view* dst, int64_t num_layers,
                               const int32_t* copies, int64_t num_copies, void* stream) {
  return call_copy(&quire::AttentionBackend::copy_blocks, backend, src, dst, num_layers, copies,
                   num_copies, stream);
}

quire_status quire_export_blocks(quire_backend* backend, const quire_kv_cache_view* src,
                                 const quire_kv_cache_view* plain, int64_t num_layers,
                                 const int32_t* copies, int64_t num_copies, void* stream) {
  return call_copy(&quire::AttentionBackend::export_blocks, backend, src, plain, num_layers, copies,
                   num_copies, stream);
}

quire_status quire_import_blocks(quire_backend* backend, const quire_kv_cache_view* plain,
                                 const quire_kv_cache_view* dst, int64_t num_layers,
                                 const int32_t* copies, int64_t num_copies, void* stream) {
  return call_copy(&quire::AttentionBackend::import_blocks, backend, plain, dst, num_layers, copies,
                   num_copies, stream);
}

quire_status quire_kv_cache_copy_blocks(quire_backend* backend, const quire_kv_cache* src,
                                        const quire_kv_cache* dst, const int32_t* copies,
                                        int64_t num_copies, void* stream) {
  return guarded([&] {
    quire::AttentionBackend& user = *open(backend, "backend").backend;
    const auto from = open(src, "src").cache.layers();
    const auto to = open(dst, "dst").cache.layers();
    user.copy_blocks(from, to, to_copies(copies, num_copies), quire::Stream{.handle = stream});
  });
}

quire_status quire_copy_region(quire_backend* backend, const quire_kv_cache_view* src,
                               const quire_kv_cache_view* dst, int64_t num_layers,
                               int32_t src_block, int32_t dst_block, int32_t first_token,
                               int32_t num_tokens, void* stream) {
  return guarded([&] {
    quire::AttentionBackend& user = *open(backend, "backend").backend;
    user.copy_region(to_views(src, num_layers, "source views"),
                     to_views(dst, num_layers, "destination views"),
                     {.blocks = {.src = src_block, .dst = dst_block},
                      .first_token = first_token,
                      .num_tokens = num_tokens},
                     quire::Stream{.handle = stream});
  });
}

quire_status quire_memory_allocate(quire_backend* backend, int64_t size_bytes, void** data) {
  return guarded([&] {
    void*& out = require_out(data, "data");
    quire::require(size_bytes >= 0, "size_bytes: cannot be ", size_bytes);
    out = memory_of(backend).allocate(size_bytes);
  });
}

quire_status quire_memory_free(quire_backend* backend, void* data) {
  return guarded([&] {
    quire::DeviceMemory& memory = memory_of(backend);
    if (data != nullptr) memory.free(data);
  });
}

quire_status quire_memory_allocate_host(quire_backend* backend, int64_t size_bytes, void** data) {
  return guarded([&] {
    void*& out = require_out(data, "data");
    quire::require(size_bytes >= 0, "size_bytes: cannot be ", size_bytes);
    out = memory_of(backend).allocate_host(size_bytes);
  });
}

quire_status quire_memory_free_host(quire_backend* backend, void* data) {
  return guarded([&] {
    quire::DeviceMemory& memory = memory_of(backend);
    if (data != nullptr) memory.free_host(data);
  });
}

quire_status quire_memory_copy_to_device(quire_backend* backend, void* device, const void* host,
                                         int64_t size_bytes, void* stream) {
  return guarded([&] {
    quire::DeviceMemory& memory = memory_of(backend);
    require_memory(device, size_bytes, "device");
    require_memory(host, size_bytes, "host");
    if (size_bytes > 0) memory.copy_to_device(device, host, size_bytes, {.handle = stream});
  });
}

quire_status quire_memory_copy_to_host(quire_backend* backend, void* host, const void* device,
                                       int64_t size_bytes, void* stream) {
  return guarded([&] {
    quire::DeviceMemory& memory = memory_of(backend);
    require_memory(host, size_bytes, "host");
    require_memory(device, size_bytes, "device");
    if (size_bytes > 0) memory.copy_to_host(host, device, size_bytes, {.handle = stream});
  });
}

quire_status quire_stream_create(quire_backend* backend, void** stream) {
  return guarded([&] {
    void*& out = require_out(stream, "stream");
    out = memory_of(backend).create_stream().handle;
  });
}

quire_status quire_stream_destroy(quire_backend* backend, void* stream) {
  return guarded([&] { memory_of(backend).destroy_stream({.handle = stream}); });
}

quire_status quire_stream_synchronize(quire_backend* backend, void* stream) {
  return guarded([&] { memory_of(backend).synchronize({.handle = stream}); });
}
