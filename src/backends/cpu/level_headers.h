// SPDX-License-Identifier: Apache-2.0
// Every header that the included files (*.inl) of a level use. They come before its target region:
// inline functions of shared headers must be compiled for the baseline.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "attention/mask.h"
#include "backends/cpu/append_call.h"
#include "backends/cpu/attend_call.h"
#include "backends/cpu/chunk.h"
#include "backends/cpu/exp2_coefficients.h"
#include "backends/cpu/target_region.h"
#include "base/dispatch.h"
#include "base/number_formats.h"
#include "layout/kv_offset.h"
