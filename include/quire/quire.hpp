// SPDX-License-Identifier: Apache-2.0
// Everything of quire's C++ API.
#pragma once

#include "quire/attention_spec.h"
#include "quire/backend.h"
#include "quire/batch.h"
#include "quire/batch_convert.h"
#include "quire/block_manager.h"
#include "quire/block_stats.h"
#include "quire/device.h"
#include "quire/dtype.h"
#include "quire/error.h"
#include "quire/export.h"
#include "quire/kv_cache.h"
#include "quire/kv_events.h"
#include "quire/kv_ids.h"
#include "quire/kv_step.h"
#include "quire/prepared_batch.h"
#include "quire/prompt.h"
#include "quire/registry.h"
#include "quire/tensor.h"
#include "quire/version.h"
