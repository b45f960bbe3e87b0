// SPDX-License-Identifier: Apache-2.0
// quire for C and for every language that can call C: everything of the C interface.
//
//   quire_backend* backend = NULL;
//   quire_backend_create("cpu", NULL, &backend);
//   quire_preferred_layout(backend, &spec, &spec.kv_layout);
//   quire_kv_cache_create(backend, &spec, &cache_options, &cache);
//   quire_prepared_batch_create(backend, &spec, &bounds, NULL, &prepared);
//   quire_prepare(backend, prepared, &batch, NULL);               // once per step
//   quire_append(backend, prepared, &k, &v, &layer, NULL);        // once per layer
//   quire_attend(backend, prepared, NULL, &q, &source, &output, NULL);
//
// The words and their meanings are those of the C++ headers; docs/c_api.md lists the functions.
//
// Errors. Every call that can fail returns a quire_status; when it is not QUIRE_OK,
// quire_error_message() has the text, in the same thread. Such a call has changed nothing. Expected
// outcomes (no free block, nothing to schedule) are values, not errors. Nothing prints, aborts, or
// lets an exception out.
//
// Structs begin with struct_bytes, the size that the caller was compiled with, and struct_version:
// {QUIRE_SIZED(type), ...} fills them. Zero means the default in every other field. New fields come
// only at the end, so a program works with newer libraries; one that is newer than the library
// works as long as it leaves the fields that the library does not know at 0. In an array of structs
// all have the size of the first. In a struct that is written the caller sets the two first fields.
//
// Ownership. What a _create function gives belongs to the caller until the _destroy function of
// that kind; a handle must not be used afterwards. Handles keep alive what they are made from, so
// the order of _destroy is free; NULL is destroyed without effect. NULL anywhere else, or a handle
// of another kind, is QUIRE_INVALID_ARGUMENT. Strings and arrays that a call gives belong to the
// handle unless it says otherwise.
//
// Threads. A backend may be used by several threads at once, and a prompt is immutable; every other
// handle by one thread at a time, unless a call says otherwise. There is no global state; the error
// text is per thread.
#pragma once

#include "quire/c/attention.h"
#include "quire/c/backend.h"
#include "quire/c/base.h"
#include "quire/c/batch.h"
#include "quire/c/block_manager.h"
#include "quire/c/block_step.h"
#include "quire/c/check.h"
#include "quire/c/copy.h"
#include "quire/c/info.h"
#include "quire/c/kv_cache.h"
#include "quire/c/memory.h"
#include "quire/c/prompt.h"
#include "quire/c/scheduler.h"
