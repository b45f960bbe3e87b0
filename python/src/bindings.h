// SPDX-License-Identifier: Apache-2.0
// The parts of the module `quire._quire`, one function each.
#pragma once

#include <nanobind/nanobind.h>

namespace quire::python {

namespace nb = nanobind;

void bind_spec(nb::module_& module);           // AttentionSpec, BatchBounds
void bind_backend(nb::module_& module);        // Backend, info
void bind_calls(nb::module_& module);          // attend, append, merge
void bind_kv_cache(nb::module_& module);       // KvCache, KvCacheView
void bind_prepared(nb::module_& module);       // BatchView, PreparedBatch
void bind_convert(nb::module_& module);        // from_token_slots
void bind_prompt(nb::module_& module);         // Prompt
void bind_block_manager(nb::module_& module);  // BlockManager
void bind_scheduler(nb::module_& module);      // Scheduler, ScheduledBatch
void bind_check(nb::module_& module);          // check

}  // namespace quire::python
