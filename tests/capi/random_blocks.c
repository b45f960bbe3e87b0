// SPDX-License-Identifier: Apache-2.0
// Random arguments: prompts, block managers and schedulers.
#include "capi/random_world.h"

void random_prompt(World* world, int at) {
  quire_extra_key key = {.first_token = any_integer(world),
                         .num_tokens = any_integer(world),
                         .bytes = ANY_OR_NULL(world, world->bytes),
                         .num_bytes = any_length(world)};
  ANY_HEAD(world, key);
  quire_prefix_scope scope = {.salt = ANY_OR_NULL(world, world->bytes),
                              .salt_bytes = any_length(world),
                              .extra_keys = &key,
                              .num_extra_keys = chance(world, 3) ? 1 : 0,
                              .unhashed = chance(world, 6) ? any_i32(world) : 0};
  ANY_HEAD(world, scope);
  quire_prompt* made = NULL;
  count(world,
        quire_prompt_create(ANY_OR_NULL(world, world->i32[2 + below(world, 4)]), any_length(world),
                            chance(world, 10) ? any_i32(world) : kBlockSize,
                            chance(world, 2) ? &scope : NULL, &made));
  uint8_t digest[32];
  count(world, quire_prompt_key(made, any_integer(world), digest));
  if (made == NULL) return;
  count(world, quire_prompt_destroy(world->prompts[at]));
  world->prompts[at] = made;
}

void random_manager(World* world, int at) {
  quire_block_pool pools[2];
  quire_layer_group groups[2];
  for (int i = 0; i < 2; ++i) {
    pools[i] = (quire_block_pool){.num_blocks = 2 + (int64_t)below(world, 20),
                                  .num_host_blocks = (int64_t)below(world, 8),
                                  .watermark_blocks = (int64_t)below(world, 3)};
    ANY_HEAD(world, pools[i]);
    if (mishap(world, 12)) pools[i].num_blocks = any_negative(world);
    groups[i] = (quire_layer_group){.pool = chance(world, 10) ? any_i32(world) : 0};
    ANY_HEAD(world, groups[i]);
    if (chance(world, 4)) groups[i].has_window_left = 1;
    if (mishap(world, 8)) groups[i].window_left = any_integer(world);
    if (mishap(world, 12)) groups[i].chunk = any_integer(world);
    if (mishap(world, 12)) groups[i].num_sink_tokens = any_integer(world);
    if (mishap(world, 12)) groups[i].alignment = any_i32(world);
  }
  quire_block_manager_options options = {
      .pools = pools,
      .num_pools = 1 + (int64_t)below(world, 2) - mishap(world, 8),
      .groups = groups,
      .num_groups = 1 + (int64_t)below(world, 2) - mishap(world, 8),
      .block_size = kBlockSize,
      .share_tails = (int32_t)below(world, 2),
      .compare_tokens = (int32_t)below(world, 2)};
  ANY_HEAD(world, options);
  if (mishap(world, 12)) (&options.block_size)[below(world, 6)] = any_i32(world);
  quire_block_manager* made = NULL;
  count(world, quire_block_manager_create(ANY_OR_NULL(world, &options), &made));
  if (made == NULL) return;
  count(world, quire_block_manager_destroy(world->managers[at]));
  world->managers[at] = made;
}

static void keep_id(World* world, uint64_t id, int owner) {
  const uint64_t at = below(world, 8);
  world->ids[at] = id;
  world->owners[at] = owner;
}

static void random_admission(World* world, quire_block_manager* manager, int owner) {
  quire_admit_options options = {.num_lookahead = any_integer(world),
                                 .max_chunk = any_integer(world)};
  ANY_HEAD(world, options);
  quire_admission admission = {.sequence = 0};
  ANY_HEAD(world, admission);
  count(world, quire_block_manager_admit(manager, ANY_HANDLE(world, prompts),
                                         chance(world, 2) ? &options : NULL, &admission));
  if (admission.sequence != 0) keep_id(world, admission.sequence, owner);
}

// What the manager knows of a sequence, and arrays of a step.
static void random_questions(World* world, quire_block_manager* manager, uint64_t id) {
  int32_t flag = 0;
  int64_t number64 = 0;
  quire_step_arrays arrays = {.query_begins = ANY_OR_NULL(world, world->i32[0]),
                              .kv_lens = ANY_OR_NULL(world, world->i32[2]),
                              .block_indices = ANY_OR_NULL(world, world->i32[3]),
                              .num_block_indices = any_length(world),
                              .row_stride = chance(world, 2) ? 0 : (int64_t)below(world, 20),
                              .slots = ANY_OR_NULL(world, world->i64[1]),
                              .num_slots = any_length(world)};
  if (arrays.row_stride == 0 || mishap(world, 10)) arrays.table_begins = world->i32[1];
  ANY_HEAD(world, arrays);
  const uint64_t ids[2] = {id, world->ids[below(world, 8)]};
  const int64_t num_ids = (int64_t)below(world, 3);
  const int32_t group = (int32_t)below(world, 2);
  count(world, quire_block_manager_write_step(manager, group, ids, num_ids, &arrays));
  quire_pool_stats stats = {.num_free = 0};
  ANY_HEAD(world, stats);
  count(world, quire_block_manager_pool_stats(manager, any_i32(world), &stats));
  const int64_t n = any_integer(world);
  count(world, quire_block_manager_can_swap_in(manager, id, n, &flag));
  count(world, quire_block_manager_num_blocks_to_append(manager, id, n, 0, &number64));
}

// Changes one sequence.
static void random_change(World* world, quire_block_manager* manager, uint64_t id, int owner) {
  const int64_t n = any_integer(world);
  int32_t flag = 0;
  int64_t left = 0;
  uint64_t made = 0;
  switch (below(world, 9)) {
    case 0:
      count(world, quire_block_manager_append(manager, id, n, &flag));
      break;
    case 1:
      count(world, quire_block_manager_commit(manager, id, ANY_OR_NULL(world, world->i32[2]),
                                              any_length(world)));
      break;
    case 2:
      count(world, quire_block_manager_commit(manager, id, NULL, n));
      break;
    case 3:
      count(world, quire_block_manager_rollback(manager, id, n));
      break;
    case 4:
      count(world, quire_block_manager_fork(manager, id, &made));
      if (made != 0) keep_id(world, made, owner);
      break;
    case 5:
      if (chance(world, 3)) count(world, quire_block_manager_free_sequence(manager, id));
      break;
    case 6:
      count(world, quire_block_manager_truncate(manager, id, n, &left));
      break;
    case 7:
      count(world, quire_block_manager_swap_out(manager, id, &flag));
      break;
    default:
      count(world, quire_block_manager_swap_in(manager, id, &flag));
  }
}

void random_blocks(World* world) {
  const uint64_t at = below(world, 8);
  const uint64_t id = mishap(world, 15) ? next_random(&world->random) : world->ids[at];
  const int owner =
      mishap(world, 8) || chance(world, 6) ? (int)below(world, kHandles) : world->owners[at];
  quire_block_manager* manager = mishap(world, 25) ? NULL : world->managers[owner];
  int32_t flag = 0;
  int64_t num_copies = 0;
  uint64_t ticket = 0;
  switch (below(world, 8)) {
    case 0:
      random_admission(world, manager, owner);
      break;
    case 1:
      count(world, quire_block_manager_take_copies(manager, &ticket, &num_copies));
      if (chance(world, 2)) count(world, quire_block_manager_complete_copies(manager, ticket));
      break;
    case 2:
      random_questions(world, manager, id);
      break;
    case 3:
      count(world, quire_block_manager_resize(manager, (int32_t)below(world, 2),
                                              any_integer(world) % 64, &flag));
      if (chance(world, 20)) count(world, quire_block_manager_reset_prefix_cache(manager));
      break;
    default:
      random_change(world, manager, id, owner);
  }
}

void random_scheduler(World* world, int at) {
  quire_scheduler_options options = {.max_tokens = 16, .max_sequences = 4};
  ANY_HEAD(world, options);
  if (mishap(world, 6)) (&options.max_tokens)[below(world, 6)] = any_integer(world);
  if (mishap(world, 6)) (&options.aging_steps)[below(world, 6)] = any_i32(world);
  if (mishap(world, 6)) options.key_seconds = (double)any_integer(world);
  quire_scheduler* made = NULL;
  // The scheduler takes the manager; the next one is for calls by hand.
  count(world, quire_scheduler_create(ANY_OR_NULL(world, &options), world->managers[at], &made));
  if (made == NULL) return;
  quire_block_manager* driven = world->managers[at];
  while (world->managers[at] == driven) random_manager(world, at);
  count(world, quire_scheduler_destroy(world->schedulers[at]));
  world->schedulers[at] = made;
}

void random_requests(World* world) {
  quire_scheduler* scheduler = ANY_HANDLE(world, schedulers);
  const uint64_t id = below(world, 12);
  uint64_t made = 0;
  switch (below(world, 8)) {
    case 0:
    case 1: {
      quire_request request = {.prompt = ANY_HANDLE(world, prompts),
                               .max_new_tokens = any_integer(world),
                               .num_cross_tokens = chance(world, 20) ? any_integer(world) : 0,
                               .priority = any_i32(world)};
      ANY_HEAD(world, request);
      count(world, quire_scheduler_submit(scheduler, &request, &made));
      break;
    }
    case 2:
      count(world, quire_scheduler_extend(scheduler, id, ANY_OR_NULL(world, world->i32[2]),
                                          chance(world, 3) ? any_length(world) : 1,
                                          ANY_OR_NULL(world, world->i32[3]),
                                          chance(world, 3) ? any_length(world) : 0));
      break;
    case 3:
      count(world, chance(world, 2) ? quire_scheduler_finish(scheduler, id)
                                    : quire_scheduler_cancel(scheduler, id));
      break;
    case 4:
      count(world, quire_scheduler_fork(scheduler, id, &made));
      break;
    case 5: {
      quire_group_copies copies = {.num_on_host = 0};
      ANY_HEAD(world, copies);
      count(world, quire_scheduler_copies(scheduler, any_integer(world), any_i32(world), &copies));
      quire_batch batch = {.reserved = 0};
      ANY_HEAD(world, batch);
      count(world, quire_scheduler_batch_view(scheduler, any_i32(world), &batch));
      break;
    }
    default: {
      quire_scheduled_batch batch = {.num_tokens = 0};
      ANY_HEAD(world, batch);
      count(world, quire_scheduler_schedule(scheduler, &batch));
      quire_step_result result = {.num_tokens = 0};
      ANY_HEAD(world, result);
      count(world, chance(world, 4) ? quire_scheduler_abandon(scheduler, any_integer(world))
                                    : quire_scheduler_commit(scheduler, &result));
      quire_ready_request ready = {.row = 0};
      ANY_HEAD(world, ready);
      count(world, quire_scheduler_ready(scheduler, any_integer(world), &ready));
    }
  }
}
