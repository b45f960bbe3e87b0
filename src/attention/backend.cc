// SPDX-License-Identifier: Apache-2.0
// The public calls of every backend: check, then do. See validate.h for what is checked.
//
// A host workspace is [validation scratch | the backend's part], both 64-byte aligned.
#include "quire/backend.h"

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "attention/validate.h"
#include "base/check.h"

namespace quire {
namespace {

void require_supported(const BackendInfo& info, const Support& support) {
  if (support.ok()) return;
  std::string reasons;
  for (const std::string& reason : support.reasons) {
    reasons += (reasons.empty() ? "" : "; ") + reason;
  }
  fail(ErrorCode::kUnsupported, "backend ", info.name, " refuses the spec: ", reasons);
}

void require_stream(Device device, Stream stream) {
  require(!device.is_host() || stream == Stream{}, "stream: the host takes only the default one");
}

}  // namespace

PreparedBatch::PreparedBatch(const AttentionSpec& spec, const BatchBounds& bounds,
                             const Workspace& workspace)
    : spec_(spec), bounds_(bounds), workspace_(workspace) {}

PreparedBatch::~PreparedBatch() = default;

AttentionBackend::~AttentionBackend() = default;

Support AttentionBackend::supports(const AttentionSpec& spec) const {
  validate(spec);
  Support support;
  collect_reasons(spec, support);
  return support;
}

KvLayout AttentionBackend::preferred_layout(const AttentionSpec& spec) const {
  return plain_layout(spec);
}

Status AttentionBackend::poll(PreparedBatch& prepared) {
  require_own(prepared);
  return do_poll(prepared);
}

Status AttentionBackend::do_poll(PreparedBatch& /*prepared*/) {
  return {};
}

WorkspaceSize AttentionBackend::workspace(const AttentionSpec& spec,
                                          const BatchBounds& bounds) const {
  require_supported(info(), supports(spec));
  validate_bounds(spec, bounds);
  WorkspaceSize size = do_workspace(spec, bounds);
  size.host_bytes += validation_scratch_bytes(bounds);
  return size;
}

std::unique_ptr<PreparedBatch> AttentionBackend::make_prepared(const AttentionSpec& spec,
                                                               const BatchBounds& bounds,
                                                               const Workspace& workspace) {
  const Support support = supports(spec);
  require_supported(info(), support);
  validate_bounds(spec, bounds);
  Workspace own = workspace;
  own.size = do_workspace(spec, bounds);
  const std::int64_t scratch_bytes = validation_scratch_bytes(bounds);
  validate_workspace(workspace, {.host_bytes = own.size.host_bytes + scratch_bytes,
                                 .device_bytes = own.size.device_bytes});
  own.host = static_cast<std::byte*>(workspace.host) + scratch_bytes;

  std::unique_ptr<PreparedBatch> prepared = do_make_prepared(spec, bounds, own);
  QUIRE_CHECK(prepared != nullptr);
  prepared->validation_scratch_ = workspace.host;
  prepared->fused_append_ = support.fused_append;
  prepared->owner_ = this;
  return prepared;
}

void AttentionBackend::require_own(const PreparedBatch& prepared) const {
  if (prepared.owner_ != this) {
    fail(ErrorCode::kInvalidArgument, "prepared: made by another backend than this ", info().name);
  }
}

void AttentionBackend::require_ready(const PreparedBatch& prepared) const {
  require_own(prepared);
  require(prepared.ready_, "prepared: no batch, because prepare was not called or has failed");
}

void AttentionBackend::prepare(PreparedBatch& prepared, const BatchView& batch, Stream stream) {
  require_own(prepared);
  prepared.ready_ = false;
  const Device device = memory().device();
  require_stream(device, stream);
  prepared.facts_ =
      validate_batch(prepared.spec_, prepared.bounds_, batch, device, prepared.validation_scratch_);
  prepared.batch_ = batch;
  do_prepare(prepared, stream);
  prepared.ready_ = true;
}

void AttentionBackend::append(const PreparedBatch& prepared, const NewKv& new_kv,
                              const KvCacheView& cache, Stream stream) {
  require_ready(prepared);
  if (prepared.fused_append_) {
    fail(ErrorCode::kUnsupported, "append: backend ", info().name,
         " stores K and V inside attend; give them to attend");
  }
  const Device device = memory().device();
  require_stream(device, stream);
  validate_append(prepared.spec_, prepared.facts_, new_kv, cache, device);
  do_append(prepared, new_kv, cache, stream);
}

void AttentionBackend::attend(const PreparedBatch& prepared, const AttentionParams& params,
                              const TensorView& q, const KvSource& source,
                              const AttentionOutput& output, Stream stream) {
  require_ready(prepared);
  const bool has_new_kv = source.new_kv.k.present();
  if (prepared.fused_append_ && !has_new_kv) {
    fail(ErrorCode::kUnsupported, "attend: backend ", info().name,
         " stores K and V inside attend; give it new K and V");
  }
  const Device device = memory().device();
  require_stream(device, stream);
  validate_attend(prepared.spec_, prepared.facts_, prepared.batch_, params, q, source, output,
                  device);
  if (prepared.fused_append_ || !has_new_kv) {
    do_attend(prepared, params, q, source, output, stream);
    return;
  }
  do_append_and_attend(prepared, params, q, source, output, stream);
}

void AttentionBackend::do_append_and_attend(const PreparedBatch& prepared,
                                            const AttentionParams& params, const TensorView& q,
                                            const KvSource& source, const AttentionOutput& output,
                                            Stream stream) {
  do_append(prepared, source.new_kv, source.cache, stream);
  do_attend(prepared, params, q, KvSource(source.cache), output, stream);
}

void AttentionBackend::copy_blocks(std::span<const KvCacheView> src,
                                   std::span<const KvCacheView> dst,
                                   std::span<const BlockCopy> copies, Stream stream) {
  const Device device = memory().device();
  require_stream(device, stream);
  validate_copy_blocks(src, dst, copies, CopyKind::kSameLayout, device);
  do_copy_blocks(src, dst, copies, stream);
}

void AttentionBackend::copy_region(std::span<const KvCacheView> src,
                                   std::span<const KvCacheView> dst, const BlockRegionCopy& copy,
                                   Stream stream) {
  const Device device = memory().device();
  require_stream(device, stream);
  validate_copy_region(src, dst, copy, device);
  do_copy_region(src, dst, copy, stream);
}

void AttentionBackend::export_blocks(std::span<const KvCacheView> src,
                                     std::span<const KvCacheView> plain,
                                     std::span<const BlockCopy> copies, Stream stream) {
  const Device device = memory().device();
  require_stream(device, stream);
  validate_copy_blocks(src, plain, copies, CopyKind::kExport, device);
  do_copy_blocks(src, plain, copies, stream);
}

void AttentionBackend::import_blocks(std::span<const KvCacheView> plain,
                                     std::span<const KvCacheView> dst,
                                     std::span<const BlockCopy> copies, Stream stream) {
  const Device device = memory().device();
  require_stream(device, stream);
  validate_copy_blocks(plain, dst, copies, CopyKind::kImport, device);
  do_copy_blocks(plain, dst, copies, stream);
}

void AttentionBackend::merge(std::span<const Partial> partials, ArrayView<float> sinks,
                             const AttentionOutput& output, Stream stream) {
  const Device device = memory().device();
  require_stream(device, stream);
  validate_merge(partials, sinks, output, device);
  do_merge(partials, sinks, output, stream);
}

}  // namespace quire
