// SPDX-License-Identifier: Apache-2.0
//! An engine in Rust over the C interface: requests run together on one paged cache, and every row
//! that is computed is held to attention as a textbook has it.
mod quire;

use quire::*;
use std::collections::HashMap;
use std::ffi::CStr;
use std::ptr::{null, null_mut};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 32;
const BLOCK_SIZE: i32 = 16;
const BLOCKS: i64 = 64;
const MAX_TOKENS: i64 = 48;

struct Engine {
    backend: Owned<quire_backend>,
    cache: Owned<quire_kv_cache>,
    prepared: Owned<quire_prepared_batch>,
    scheduler: Owned<quire_scheduler>,
}

/// What the "model" has for a token at a position: Q (0), K (1) or V (2).
fn number(what: usize, token: i32, position: usize, i: usize) -> f32 {
    let mut hash = (what * 1013 + token as usize * 31 + position * 7919 + i * 104729) as u64;
    hash = (hash ^ (hash >> 15)).wrapping_mul(0xBF58476D1CE4E5B9);
    hash = (hash ^ (hash >> 31)).wrapping_mul(0x94D049BB133111EB);
    (hash >> 40) as f32 / (1u32 << 23) as f32 - 1.0
}

fn rows(what: usize, tokens: &[i32], positions: &[i32], heads: usize) -> Vec<f32> {
    let places = tokens.iter().zip(positions);
    places.flat_map(|(&t, &p)| (0..heads * DIM).map(move |i| number(what, t, p as usize, i))).collect()
}

/// Attention of the last token over all of them.
fn naive(tokens: &[i32]) -> Vec<f64> {
    let last = tokens.len() - 1;
    let mut out = vec![0.0; HEADS * DIM];
    for head in 0..HEADS {
        let kv = head / (HEADS / KV_HEADS) * DIM;
        let value = |what, at: usize, i| number(what, tokens[at], at, i) as f64;
        let score = |key| (0..DIM).map(|i| value(0, last, head * DIM + i) * value(1, key, kv + i)).sum::<f64>();
        let weights: Vec<f64> = (0..=last).map(|key| (score(key) / (DIM as f64).sqrt()).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for i in 0..DIM {
            out[head * DIM + i] = (0..=last).map(|key| weights[key] / sum * value(2, key, kv + i)).sum();
        }
    }
    out
}

impl Engine {
    fn new() -> Result<Self, String> {
        let mut spec = quire_attention_spec::sized();
        spec.num_q_heads = HEADS as i32;
        spec.num_kv_heads = KV_HEADS as i32;
        spec.head_dim = DIM as i32;
        spec.block_size = BLOCK_SIZE;
        let name = b"cpu\0".as_ptr() as *const _;
        let backend = Owned::new(quire_backend_destroy, |b| unsafe { quire_backend_create(name, null(), b) })?;
        ok(unsafe { quire_preferred_layout(backend.handle, &spec, &mut spec.kv_layout) })?;
        let mut storage = quire_kv_cache_options::sized();
        storage.num_blocks = BLOCKS;
        let cache = Owned::new(quire_kv_cache_destroy, |c| unsafe {
            quire_kv_cache_create(backend.handle, &spec, &storage, c)
        })?;
        let mut bounds = quire_batch_bounds::sized();
        bounds.max_sequences = 8;
        bounds.max_tokens = MAX_TOKENS;
        bounds.max_kv_len = 256;
        bounds.max_total_kv_len = BLOCKS * BLOCK_SIZE as i64;
        let prepared = Owned::new(quire_prepared_batch_destroy, |p| unsafe {
            quire_prepared_batch_create(backend.handle, &spec, &bounds, null(), p)
        })?;

        let mut pool = quire_block_pool::sized();
        pool.num_blocks = BLOCKS;
        let group = quire_layer_group::sized();
        let mut blocks = quire_block_manager_options::sized();
        blocks.pools = &pool;
        blocks.num_pools = 1;
        blocks.groups = &group;
        blocks.num_groups = 1;
        blocks.block_size = BLOCK_SIZE;
        let manager =
            Owned::new(quire_block_manager_destroy, |m| unsafe { quire_block_manager_create(&blocks, m) })?;
        let mut steps = quire_scheduler_options::sized();
        steps.max_tokens = MAX_TOKENS;
        steps.max_sequences = 8;
        // The scheduler keeps the manager alive: its handle may go.
        let scheduler = Owned::new(quire_scheduler_destroy, |s| unsafe {
            quire_scheduler_create(&steps, manager.handle, s)
        })?;
        Ok(Engine { backend, cache, prepared, scheduler })
    }

    fn submit(&self, tokens: &[i32], max_new_tokens: i64) -> Result<u64, String> {
        let prompt = Owned::new(quire_prompt_destroy, |p| unsafe {
            quire_prompt_create(tokens.as_ptr(), tokens.len() as i64, BLOCK_SIZE, null(), p)
        })?;
        let mut request = quire_request::sized();
        request.prompt = prompt.handle;
        request.max_new_tokens = max_new_tokens;
        let mut id = 0;
        ok(unsafe { quire_scheduler_submit(self.scheduler.handle, &request, &mut id) })?;
        Ok(id)
    }

    /// The outputs [num_tokens, HEADS, DIM] of a step.
    fn compute(&self, tokens: &[i32], positions: &[i32]) -> Result<Vec<f32>, String> {
        let mut batch = quire_batch::sized();
        let mut layer = quire_kv_cache_view::sized();
        let mut out = vec![0.0; tokens.len() * HEADS * DIM];
        let (mut q, mut k) = (rows(0, tokens, positions, HEADS), rows(1, tokens, positions, KV_HEADS));
        let mut v = rows(2, tokens, positions, KV_HEADS);
        let (q, k) = (tensor(&mut q, HEADS, DIM), tensor(&mut k, KV_HEADS, DIM));
        let (v, result) = (tensor(&mut v, KV_HEADS, DIM), tensor(&mut out, HEADS, DIM));
        let (backend, prepared) = (self.backend.handle, self.prepared.handle);
        unsafe {
            ok(quire_scheduler_batch_view(self.scheduler.handle, 0, &mut batch))?;
            ok(quire_prepare(backend, prepared, &batch, null_mut()))?;
            ok(quire_kv_cache_layer(self.cache.handle, 0, &mut layer))?;
            ok(quire_append(backend, prepared, &k, &v, &layer, null_mut()))?;
            let mut source = quire_kv_source::sized();
            source.cache = &layer;
            let mut output = quire_attention_output::sized();
            output.out = &result;
            ok(quire_attend(backend, prepared, null(), &q, &source, &output, null_mut()))?;
        }
        Ok(out)
    }

    /// Runs a step, checks its rows and adds a token to every request that is ready.
    fn step(&self, texts: &mut HashMap<u64, Vec<i32>>) -> Result<(), String> {
        let mut step = quire_scheduled_batch::sized();
        ok(unsafe { quire_scheduler_schedule(self.scheduler.handle, &mut step) })?;
        for stage in 0..step.num_copy_stages {
            let mut copies = quire_group_copies::sized();
            ok(unsafe { quire_scheduler_copies(self.scheduler.handle, stage, 0, &mut copies) })?;
            let (cache, n) = (self.cache.handle, copies.num_on_device);
            ok(unsafe {
                quire_kv_cache_copy_blocks(self.backend.handle, cache, cache, copies.on_device, n, null_mut())
            })?;
        }
        let mut out = Vec::new();
        if step.num_tokens > 0 {
            let n = step.num_tokens as usize;
            let tokens = unsafe { std::slice::from_raw_parts(step.tokens, n) };
            let positions = unsafe { std::slice::from_raw_parts(step.positions, n) };
            out = self.compute(tokens, positions)?;
        }
        for index in 0..step.num_sequences {
            let mut part = quire_scheduled_sequence::sized();
            ok(unsafe { quire_scheduler_sequence(self.scheduler.handle, index, &mut part) })?;
            for i in 0..part.num_tokens as usize {
                let got = &out[(part.first_row as usize + i) * HEADS * DIM..][..HEADS * DIM];
                let expected = naive(&texts[&part.request][..part.first_position as usize + i + 1]);
                assert!(got.iter().zip(&expected).all(|(a, b)| (*a as f64 - b).abs() < 1e-5));
            }
        }
        let mut result = quire_step_result::sized();
        ok(unsafe { quire_scheduler_commit(self.scheduler.handle, &mut result) })?;
        for index in 0..result.num_ready {
            let mut ready = quire_ready_request::sized();
            ok(unsafe { quire_scheduler_ready(self.scheduler.handle, index, &mut ready) })?;
            let row = &out[ready.row as usize * HEADS * DIM..][..HEADS * DIM];
            let token = (0..HEADS * DIM).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as i32;
            texts.get_mut(&ready.request).unwrap().push(token);
            ok(unsafe { quire_scheduler_extend(self.scheduler.handle, ready.request, &token, 1, null(), 0) })?;
        }
        Ok(())
    }
}

fn main() -> Result<(), String> {
    check_layout();
    let engine = Engine::new()?;
    let mut texts = HashMap::new();
    for length in [20, 30, 40] {
        let prompt: Vec<i32> = (0..length).collect();
        texts.insert(engine.submit(&prompt, 6)?, prompt);
    }
    let mut unfinished = 1;
    while unfinished > 0 {
        engine.step(&mut texts)?;
        ok(unsafe { quire_scheduler_num_unfinished(engine.scheduler.handle, &mut unfinished) })?;
    }
    let mistake = engine.submit(&[], 6).unwrap_err();
    println!("an empty prompt is an error: {}", mistake);
    for (id, text) in &texts {
        println!("request {}: {:?}", id, &text[text.len() - 6..]);
    }
    println!("quire {}", unsafe { CStr::from_ptr(quire_version()) }.to_string_lossy());
    Ok(())
}
