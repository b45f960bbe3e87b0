// SPDX-License-Identifier: Apache-2.0
//! The part of quire/quire.h that the example uses, declared by hand: no build tool is needed. A
//! bigger program lets bindgen read the header. `check_layout` compares every struct with the
//! library that was found.
#![allow(non_camel_case_types)]

use std::ffi::CStr;
use std::mem::{size_of, zeroed};
use std::os::raw::{c_char, c_void};
use std::ptr::null;

macro_rules! handles {
    ($($name:ident),*) => { $(#[repr(C)] pub struct $name { _private: [u8; 0] })* };
}
handles!(quire_backend, quire_kv_cache, quire_prepared_batch);
handles!(quire_prompt, quire_block_manager, quire_scheduler);

/// Structs that begin with their size and version; `sized()` makes one with defaults.
macro_rules! structs {
    ($($name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name { pub struct_bytes: u32, pub struct_version: u32, $(pub $field: $type),* }
            impl $name {
                pub fn sized() -> Self {
                    let mut made: Self = unsafe { zeroed() };
                    made.struct_bytes = size_of::<Self>() as u32;
                    made.struct_version = 1;
                    made
                }
            }
        )*
        pub fn check_layout() {
            $(
                let name = concat!(stringify!($name), "\0");
                let known = unsafe { quire_struct_bytes(name.as_ptr() as *const c_char) };
                assert_eq!(known, size_of::<$name>(), "{}", name);
            )*
        }
    };
}

structs! {
    quire_attention_spec {
        num_q_heads: i32, num_kv_heads: i32, head_dim: i32, value_dim: i32, q_dtype: i32,
        out_dtype: i32, kv_dtype: i32, block_size: i32, kv_scales: i32, v_in_k: i32,
        kv_layout: i32, alignment: i32, not_causal: i32, has_window_left: i32,
        has_window_right: i32, features: u32, window_left: i64, window_right: i64, chunk: i64,
    }
    quire_tensor {
        data: *mut c_void, shape: [i64; 5], strides: [i64; 5], dtype: i32, rank: i32,
        device_kind: i32, device_index: i32,
    }
    quire_batch {
        num_sequences: i64, query_begins: *const i32, query_ends: *const i32,
        kv_lens: *const i32, block_indices: *const i32, num_block_indices: i64, row_stride: i64,
        table_begins: *const i32, rows: *const i64, slots: *const i64, num_slots: i64,
        tree_bits: *const u8, tree_begins: *const i64, tree_depths: *const i32,
        num_tree_bytes: i64, num_tree_depths: i64, table_kind: i32, device_kind: i32,
        device_index: i32, reserved: i32,
    }
    quire_batch_bounds {
        max_sequences: i64, max_tokens: i64, max_kv_len: i64, max_total_kv_len: i64,
        max_q_len: i64,
    }
    quire_kv_cache_options {
        num_blocks: i64, num_layers: i32, huge_pages: i32, on_host: i32, reserved: i32,
    }
    quire_kv_cache_view {
        k: *mut c_void, v: *mut c_void, k_scales: *mut f32, v_scales: *mut f32,
        k_strides: [i64; 3], v_strides: [i64; 3], k_scale_strides: [i64; 3],
        v_scale_strides: [i64; 3], num_blocks: i64, opaque_k_bytes: i64, opaque_v_bytes: i64,
        num_kv_heads: i32, head_dim: i32, value_dim: i32, kv_dtype: i32, block_size: i32,
        kv_scales_kind: i32, v_in_k: i32, kv_layout: i32, device_kind: i32, device_index: i32,
    }
    quire_kv_source {
        cache: *const quire_kv_cache_view, new_k: *const quire_tensor, new_v: *const quire_tensor,
    }
    quire_attention_output { out: *const quire_tensor, lse: *const quire_tensor }
    quire_block_pool { num_blocks: i64, num_host_blocks: i64, watermark_blocks: i64 }
    quire_layer_group {
        pool: i32, alignment: i32, not_causal: i32, has_window_left: i32, window_left: i64,
        chunk: i64, num_sink_tokens: i64,
    }
    quire_block_manager_options {
        pools: *const quire_block_pool, num_pools: i64, groups: *const quire_layer_group,
        num_groups: i64, on_event: *const c_void, event_context: *mut c_void, block_size: i32,
        no_prefix_cache: i32, share_tails: i32, compare_tokens: i32, digest_bits: i32,
        validate_interval: i32,
    }
    quire_scheduler_options {
        max_tokens: i64, max_sequences: i64, max_chunk: i64, max_cross_tokens: i64,
        max_length: i64, max_total_length: i64, aging_steps: i32, prefix_window: i32,
        wait_for_shared: i32, no_partial: i32, no_swap: i32, no_preemption_for_waiting: i32,
        token_seconds: f64, key_seconds: f64, byte_seconds: f64, token_bytes: i64,
        clock: *const c_void, clock_context: *mut c_void,
    }
    quire_request {
        prompt: *const quire_prompt, max_new_tokens: i64, deadline_ns: i64,
        num_cross_tokens: i64, has_deadline: i32, priority: i32,
    }
    quire_scheduled_batch {
        num_sequences: i64, num_tokens: i64, num_cross_rows: i64, num_copy_stages: i64,
        tokens: *const i32, positions: *const i32,
    }
    quire_scheduled_sequence {
        request: u64, sequence: u64, first_position: i64, first_row: i64, num_tokens: i64,
        num_drafts: i64, num_cross_rows: i64, is_last_chunk: i32, reserved: i32,
    }
    quire_group_copies {
        on_device: *const i32, num_on_device: i64, to_host: *const i32, num_to_host: i64,
        to_device: *const i32, num_to_device: i64, on_host: *const i32, num_on_host: i64,
    }
    quire_step_result { num_tokens: i64, num_sequences: i64, num_ready: i64, num_finished: i64 }
    quire_ready_request { request: u64, row: i64, num_drafts: i64 }
}

#[link(name = "quire")]
extern "C" {
    pub fn quire_version() -> *const c_char;
    pub fn quire_error_message() -> *const c_char;
    pub fn quire_struct_bytes(name: *const c_char) -> usize;
    pub fn quire_backend_create(
        name: *const c_char, options: *const c_void, backend: *mut *mut quire_backend) -> i32;
    pub fn quire_backend_destroy(backend: *mut quire_backend) -> i32;
    pub fn quire_preferred_layout(
        backend: *const quire_backend, spec: *const quire_attention_spec, layout: *mut i32) -> i32;
    pub fn quire_kv_cache_create(
        backend: *mut quire_backend, spec: *const quire_attention_spec,
        options: *const quire_kv_cache_options, cache: *mut *mut quire_kv_cache) -> i32;
    pub fn quire_kv_cache_destroy(cache: *mut quire_kv_cache) -> i32;
    pub fn quire_kv_cache_layer(
        cache: *const quire_kv_cache, layer: i32, view: *mut quire_kv_cache_view) -> i32;
    pub fn quire_kv_cache_copy_blocks(
        backend: *mut quire_backend, src: *const quire_kv_cache, dst: *const quire_kv_cache,
        copies: *const i32, num_copies: i64, stream: *mut c_void) -> i32;
    pub fn quire_prepared_batch_create(
        backend: *mut quire_backend, spec: *const quire_attention_spec,
        bounds: *const quire_batch_bounds, workspace: *const c_void,
        prepared: *mut *mut quire_prepared_batch) -> i32;
    pub fn quire_prepared_batch_destroy(prepared: *mut quire_prepared_batch) -> i32;
    pub fn quire_prepare(
        backend: *mut quire_backend, prepared: *mut quire_prepared_batch,
        batch: *const quire_batch, stream: *mut c_void) -> i32;
    pub fn quire_append(
        backend: *mut quire_backend, prepared: *const quire_prepared_batch,
        k: *const quire_tensor, v: *const quire_tensor, cache: *const quire_kv_cache_view,
        stream: *mut c_void) -> i32;
    pub fn quire_attend(
        backend: *mut quire_backend, prepared: *const quire_prepared_batch,
        params: *const c_void, q: *const quire_tensor, source: *const quire_kv_source,
        output: *const quire_attention_output, stream: *mut c_void) -> i32;
    pub fn quire_prompt_create(
        tokens: *const i32, num_tokens: i64, block_size: i32, scope: *const c_void,
        prompt: *mut *mut quire_prompt) -> i32;
    pub fn quire_prompt_destroy(prompt: *mut quire_prompt) -> i32;
    pub fn quire_block_manager_create(
        options: *const quire_block_manager_options, manager: *mut *mut quire_block_manager) -> i32;
    pub fn quire_block_manager_destroy(manager: *mut quire_block_manager) -> i32;
    pub fn quire_scheduler_create(
        options: *const quire_scheduler_options, manager: *mut quire_block_manager,
        scheduler: *mut *mut quire_scheduler) -> i32;
    pub fn quire_scheduler_destroy(scheduler: *mut quire_scheduler) -> i32;
    pub fn quire_scheduler_submit(
        scheduler: *mut quire_scheduler, request: *const quire_request, id: *mut u64) -> i32;
    pub fn quire_scheduler_num_unfinished(
        scheduler: *const quire_scheduler, num_requests: *mut i64) -> i32;
    pub fn quire_scheduler_schedule(
        scheduler: *mut quire_scheduler, batch: *mut quire_scheduled_batch) -> i32;
    pub fn quire_scheduler_sequence(
        scheduler: *const quire_scheduler, index: i64,
        sequence: *mut quire_scheduled_sequence) -> i32;
    pub fn quire_scheduler_batch_view(
        scheduler: *const quire_scheduler, group: i32, batch: *mut quire_batch) -> i32;
    pub fn quire_scheduler_copies(
        scheduler: *const quire_scheduler, stage: i64, group: i32,
        copies: *mut quire_group_copies) -> i32;
    pub fn quire_scheduler_commit(
        scheduler: *mut quire_scheduler, result: *mut quire_step_result) -> i32;
    pub fn quire_scheduler_ready(
        scheduler: *const quire_scheduler, index: i64, ready: *mut quire_ready_request) -> i32;
    pub fn quire_scheduler_extend(
        scheduler: *mut quire_scheduler, id: u64, tokens: *const i32, num_tokens: i64,
        drafts: *const i32, num_drafts: i64) -> i32;
}

/// A status as a result: the message is that of this thread.
pub fn ok(status: i32) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    let text = unsafe { CStr::from_ptr(quire_error_message()) };
    Err(text.to_string_lossy().into_owned())
}

/// A dense f32 tensor [rows, heads, dim] over a slice that outlives it.
pub fn tensor(data: &mut [f32], heads: usize, dim: usize) -> quire_tensor {
    let mut made = quire_tensor::sized();
    made.data = data.as_mut_ptr() as *mut c_void;
    made.rank = 3;
    made.shape[..3].copy_from_slice(&[(data.len() / heads / dim) as i64, heads as i64, dim as i64]);
    made
}

/// Owns a handle and destroys it.
pub struct Owned<T> {
    pub handle: *mut T,
    destroy: unsafe extern "C" fn(*mut T) -> i32,
}

impl<T> Owned<T> {
    /// `create` fills the handle.
    pub fn new(
        destroy: unsafe extern "C" fn(*mut T) -> i32,
        create: impl FnOnce(*mut *mut T) -> i32,
    ) -> Result<Self, String> {
        let mut handle = null::<T>() as *mut T;
        ok(create(&mut handle))?;
        Ok(Owned { handle, destroy })
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        unsafe { (self.destroy)(self.handle) };
    }
}
