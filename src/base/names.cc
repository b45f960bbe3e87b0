// SPDX-License-Identifier: Apache-2.0
// The names of the public enumerators, and of the version. A value outside an enumeration, as only
// a cast can make, is "unknown".
#include "quire/attention_spec.h"
#include "quire/device.h"
#include "quire/dtype.h"
#include "quire/error.h"
#include "quire/version.h"

#define QUIRE_STRING(x) #x
#define QUIRE_EXPANDED_STRING(x) QUIRE_STRING(x)

namespace quire {

const char* version() noexcept {
  return QUIRE_EXPANDED_STRING(QUIRE_VERSION_MAJOR) "." QUIRE_EXPANDED_STRING(
      QUIRE_VERSION_MINOR) "." QUIRE_EXPANDED_STRING(QUIRE_VERSION_PATCH);
}

const char* dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kF8E4M3:
      return "f8e4m3";
    case DType::kF8E5M2:
      return "f8e5m2";
    case DType::kI8:
      return "i8";
  }
  return "unknown";
}

const char* error_code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kOk:
      return "ok";
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kOutOfMemory:
      return "out_of_memory";
    case ErrorCode::kDevice:
      return "device";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

const char* device_kind_name(DeviceKind kind) noexcept {
  switch (kind) {
    case DeviceKind::kHost:
      return "host";
    case DeviceKind::kCuda:
      return "cuda";
    case DeviceKind::kRocm:
      return "rocm";
    case DeviceKind::kCustom:
      return "custom";
  }
  return "unknown";
}

const char* scale_granularity_name(ScaleGranularity granularity) noexcept {
  switch (granularity) {
    case ScaleGranularity::kNone:
      return "none";
    case ScaleGranularity::kPerTensor:
      return "per-tensor";
    case ScaleGranularity::kPerHead:
      return "per-head";
    case ScaleGranularity::kPerTokenHead:
      return "per-token-head";
  }
  return "unknown";
}

}  // namespace quire
