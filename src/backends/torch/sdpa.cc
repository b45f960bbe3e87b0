// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/sdpa.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <caffe2/core/common.h>
#include <torch/version.h>

#include <optional>
#include <tuple>

#include "backends/torch/tensors.h"
#include "base/check.h"

extern "C" void omp_set_num_threads(int num_threads);

namespace quire::torch_sdpa {
namespace {

// [1, 1, rows, columns] over memory of the caller, which torch does not write.
at::Tensor view(const void* data, std::int64_t rows, std::int64_t columns, at::ScalarType type) {
  return at::from_blob(const_cast<void*>(data), {1, 1, rows, columns}, type);
}

struct Inputs {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  std::optional<at::Tensor> mask;
};

Inputs view_inputs(const Problem& p) {
  const at::ScalarType type = scalar_type_of(p.dtype);
  Inputs inputs{.q = view(p.q, p.rows, p.dims, type),
                .k = view(p.k, p.keys, p.dims, type),
                .v = view(p.v, p.keys, p.dims, type),
                .mask = std::nullopt};
  if (p.mask != nullptr) inputs.mask = view(p.mask, p.rows, p.keys, at::kFloat);
  return inputs;
}

// The path that widens nothing rounds scores to the type of the query.
void require_fused(const Problem& p, const Inputs& in) {
  if (p.dtype == DType::kF32) return;
  constexpr std::int64_t kMath = 0;
  const std::int64_t choice =
      at::_fused_sdp_choice(in.q, in.k, in.v, in.mask, 0.0, false, p.scale, false);
  if (choice != kMath) return;
  fail(ErrorCode::kUnsupported, "torch ", version(), " would take its math path for ",
       dtype_name(p.dtype), ", which rounds scores; are its fused kernels switched off?");
}

// Of the library in memory, which need not be the one whose headers were compiled; of the headers
// if the library does not tell. It lives as long as the library.
const char* loaded_version() {
  const auto& options = caffe2::GetBuildOptions();
  const auto found = options.find("TORCH_VERSION");
  return found != options.end() ? found->second.c_str() : TORCH_VERSION;
}

void attend(const Problem& p, float* out, float* lse) {
  const c10::InferenceMode no_gradients;
  const Inputs in = view_inputs(p);
  at::Tensor result;
  if (lse != nullptr) {
    at::Tensor result_lse;
    std::tie(result, result_lse) = at::_scaled_dot_product_flash_attention_for_cpu(
        in.q, in.k, in.v, 0.0, false, in.mask, p.scale);
    at::from_blob(lse, {1, 1, p.rows}, at::kFloat).copy_(result_lse);
  } else {
    require_fused(p, in);
    result = at::scaled_dot_product_attention(in.q, in.k, in.v, in.mask, 0.0, false, p.scale,
                                              /*enable_gqa=*/false);
  }
  at::from_blob(out, {1, 1, p.rows, p.dims}, at::kFloat).copy_(result);
}

}  // namespace

void run(const Problem& problem, float* out, float* lse) {
  try {
    attend(problem, out, lse);
  } catch (const c10::Error& error) {
    fail(ErrorCode::kDevice, "torch ", version(), ": ", error.what_without_backtrace());
  }
}

// Asking torch first lets it set up this thread; later it would undo the setting.
SerialRegion::SerialRegion() noexcept : before_(at::get_num_threads()) {
  omp_set_num_threads(1);
}

SerialRegion::~SerialRegion() {
  omp_set_num_threads(before_);
}

const char* version() noexcept {
  static const char* const kVersion = loaded_version();
  return kVersion;
}

std::string version_mismatch(std::string_view built, std::string_view loaded) {
  // What follows the numbers ("a0+git1234", "+cpu") says how, not what.
  const auto numbers = [](std::string_view text) {
    return text.substr(0, text.find_first_not_of("0123456789."));
  };
  if (numbers(built) == numbers(loaded)) return {};
  return concat("built for torch ", built, ", the library that was loaded is torch ", loaded);
}

std::string version_mismatch() {
  return version_mismatch(TORCH_VERSION, version());
}

}  // namespace quire::torch_sdpa
