// SPDX-License-Identifier: Apache-2.0
// BlockManager. Sequences are ints.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "batch_object.h"
#include "bindings.h"
#include "call.h"
#include "copies.h"
#include "dict_reader.h"
#include "fail.h"
#include "id_argument.h"
#include "manager_object.h"
#include "names.h"
#include "numpy_output.h"

namespace quire::python {

void EventCollector::on_event(const KvEvent& event) noexcept {
  try {
    CollectedEvent copy{event, {event.tokens.begin(), event.tokens.end()}};
    copy.event.tokens = {};
    events_.push_back(std::move(copy));
  } catch (...) {
    ++num_lost_;
  }
}

namespace {

SequenceId sequence(const IdArgument& id) {
  return {id.value()};
}

std::vector<SequenceId> sequences(const std::vector<IdArgument>& ids) {
  std::vector<SequenceId> result;
  for (const IdArgument& id : ids) result.push_back(sequence(id));
  return result;
}

LayerGroup layer_group(nb::handle source) {
  LayerGroup group;
  if (nb::isinstance<AttentionSpec>(source)) {
    const auto& spec = *nb::cast<const AttentionSpec*>(source);
    group.alignment = spec.alignment;
    group.mask = spec.mask;
    return group;
  }
  DictReader fields("groups", source);
  group.pool = fields.get("pool", 0);
  group.alignment = parse_alignment(fields.get<std::string>("alignment", "aligned"));
  group.mask.causal = fields.get("causal", group.alignment == Alignment::kAligned);
  group.mask.window_left = fields.get<std::int64_t>("window_left", -1);
  group.mask.window_right = fields.get<std::int64_t>("window_right", -1);
  group.mask.chunk = fields.get<std::int64_t>("chunk", 0);
  group.num_sink_tokens = fields.get<std::int64_t>("num_sink_tokens", 0);
  fields.require_all_known();
  return group;
}

BlockPoolOptions pool_options(nb::handle source) {
  DictReader fields("pools", source);
  BlockPoolOptions pool;
  pool.num_blocks = fields.get<std::int64_t>("num_blocks", 0);
  pool.num_host_blocks = fields.get<std::int64_t>("num_host_blocks", 0);
  pool.watermark_blocks = fields.get<std::int64_t>("watermark_blocks", 0);
  fields.require_all_known();
  return pool;
}

std::shared_ptr<ManagerObject> make_manager(std::int64_t num_blocks, int block_size,
                                            std::int64_t num_host_blocks,
                                            std::int64_t watermark_blocks,
                                            const std::optional<std::vector<nb::object>>& pools,
                                            const std::optional<std::vector<nb::object>>& groups,
                                            bool prefix_cache, bool share_tails,
                                            bool compare_tokens, int digest_bits, bool events) {
  auto object = std::make_shared<ManagerObject>();
  BlockManagerOptions options;
  options.block_size = block_size;
  options.prefix_cache = prefix_cache;
  options.share_tails = share_tails;
  options.compare_tokens = compare_tokens;
  options.digest_bits = digest_bits;
  if (events) {
    object->events = std::make_unique<EventCollector>();
    options.events = object->events.get();
  }
  if (pools.has_value()) {
    require(num_blocks == 0 && num_host_blocks == 0 && watermark_blocks == 0,
            "pools: given together with num_blocks");
    for (const nb::object& pool : *pools) options.pools.push_back(pool_options(pool));
  } else {
    options.pools.push_back({num_blocks, num_host_blocks, watermark_blocks});
  }
  if (groups.has_value()) {
    for (const nb::object& group : *groups) options.groups.push_back(layer_group(group));
  } else {
    options.groups.emplace_back();
  }
  object->manager = std::make_unique<BlockManager>(options);
  return object;
}

AdmitOptions admit_options(std::int64_t num_lookahead, std::int64_t max_chunk,
                           std::int64_t num_cross_tokens) {
  return {num_lookahead, max_chunk, num_cross_tokens};
}

std::vector<Token> token_list(const char* name, nb::handle source) {
  Numbers<Token> numbers;
  numbers.read(name, source);
  require(!numbers.on_device(), name, ": on a device");
  return numbers.host();
}

// The arrays of a step, with an indexed table.
BatchObject write_step(const ManagerObject& self, int group, const std::vector<IdArgument>& ids) {
  const std::vector<SequenceId> named = sequences(ids);
  const StepSizes sizes = self.manager->step_sizes(group, named);
  std::vector<std::int32_t> query_begins(named.size() + 1);
  std::vector<std::int32_t> kv_lens(named.size());
  std::vector<std::int32_t> begins(named.size() + 1);
  std::vector<std::int32_t> indices(static_cast<std::size_t>(sizes.num_blocks));
  std::vector<std::int64_t> slots(static_cast<std::size_t>(sizes.num_slots));
  StepArrays arrays;
  arrays.query_begins = query_begins;
  arrays.kv_lens = kv_lens;
  arrays.indices = indices;
  arrays.begins = begins;
  arrays.slots = slots;
  self.manager->write_step(group, named, arrays);
  BatchView view;
  view.queries = QueryRanges::packed(query_begins);
  view.kv.lens = kv_lens;
  view.kv.blocks = BlockTables::indexed(begins, indices);
  view.kv.slots = slots;
  return {BatchArrays(view)};
}

nb::dict pool_dict(const PoolStats& pool) {
  nb::dict row;
  row["num_usable"] = pool.num_usable;
  row["num_free"] = pool.num_free;
  row["num_evictable"] = pool.num_evictable;
  row["num_in_use"] = pool.num_in_use;
  row["num_host_usable"] = pool.num_host_usable;
  row["num_host_in_use"] = pool.num_host_in_use;
  row["fragmentation"] = pool.fragmentation;
  row["occupancy"] = pool.occupancy();
  return row;
}

nb::dict stats(const ManagerObject& self) {
  const BlockStats stats = self.manager->stats();
  nb::dict result;
  nb::list pools;
  for (const PoolStats& pool : stats.pools) pools.append(pool_dict(pool));
  result["pools"] = pools;
  result["num_sequences"] = stats.num_sequences;
  result["num_swapped"] = stats.num_swapped;
  result["num_admitted"] = stats.num_admitted;
  result["num_prompt_tokens"] = stats.num_prompt_tokens;
  result["num_prompt_blocks"] = stats.num_prompt_blocks;
  result["num_hit_blocks"] = stats.num_hit_blocks;
  result["num_hit_tokens"] = stats.num_hit_tokens;
  result["hit_rate"] = stats.hit_rate();
  result["num_stored"] = stats.num_stored;
  result["num_duplicates"] = stats.num_duplicates;
  result["num_evictions"] = stats.num_evictions;
  result["num_copies"] = stats.num_copies;
  result["num_swapped_out"] = stats.num_swapped_out;
  result["num_swapped_in"] = stats.num_swapped_in;
  result["num_swap_hits"] = stats.num_swap_hits;
  result["num_rejected"] = stats.num_rejected;
  return result;
}

nb::list take_events(ManagerObject& self) {
  require(self.events != nullptr, "take_events: made without events=True");
  nb::list result;
  const auto bytes = [](const Digest& digest) {
    return nb::bytes(digest.bytes.data(), digest.bytes.size());
  };
  for (const CollectedEvent& one : self.events->take()) {
    nb::dict row;
    const KvEvent& event = one.event;
    row["kind"] = event.kind == KvEvent::Kind::kStored    ? "stored"
                  : event.kind == KvEvent::Kind::kRemoved ? "removed"
                                                          : "cleared";
    row["group"] = event.group;
    row["digest"] = bytes(event.digest);
    row["parent"] = bytes(event.parent);
    row["tokens"] = one.tokens;
    result.append(row);
  }
  return result;
}

using Manager = nb::class_<ManagerObject>;

void add_admission(Manager& type) {
  type.def(
          "num_cached_tokens",
          [](const ManagerObject& self, const Prompt& prompt) {
            return self.manager->num_cached_tokens(prompt);
          },
          nb::arg("prompt"), "Tokens that admit would find in the prefix cache.")
      .def(
          "can_admit",
          [](const ManagerObject& self, const Prompt& prompt, std::int64_t num_lookahead,
             std::int64_t max_chunk, std::int64_t num_cross_tokens) {
            return admit_status_name(self.manager->can_admit(
                prompt, admit_options(num_lookahead, max_chunk, num_cross_tokens)));
          },
          nb::arg("prompt"), nb::kw_only(), nb::arg("num_lookahead") = 0, nb::arg("max_chunk") = 0,
          nb::arg("num_cross_tokens") = 0, "'now', 'later' or 'never'.")
      .def(
          "admit",
          [](ManagerObject& self, const Prompt& prompt, std::int64_t num_lookahead,
             std::int64_t max_chunk, std::int64_t num_cross_tokens)
              -> std::optional<std::pair<std::uint64_t, std::int64_t>> {
            const auto admission =
                self.own().admit(prompt, admit_options(num_lookahead, max_chunk, num_cross_tokens));
            if (!admission.has_value()) return std::nullopt;
            return std::pair(admission->id.value, admission->num_cached_tokens);
          },
          nb::arg("prompt"), nb::kw_only(), nb::arg("num_lookahead") = 0, nb::arg("max_chunk") = 0,
          nb::arg("num_cross_tokens") = 0,
          "(sequence, num_cached_tokens), or None unless can_admit is 'now'.")
      .def(
          "num_blocks_to_admit",
          [](const ManagerObject& self, const Prompt& prompt, int pool, std::int64_t num_lookahead,
             std::int64_t max_chunk, std::int64_t num_cross_tokens) {
            return self.manager->num_blocks_to_admit(
                prompt, admit_options(num_lookahead, max_chunk, num_cross_tokens), pool);
          },
          nb::arg("prompt"), nb::arg("pool") = 0, nb::kw_only(), nb::arg("num_lookahead") = 0,
          nb::arg("max_chunk") = 0, nb::arg("num_cross_tokens") = 0);
}

void add_token_calls(Manager& type) {
  using Id = const IdArgument&;
  using Count = std::int64_t;
  type.def(
          "can_append",
          [](const ManagerObject& self, Id id, Count num_tokens) {
            return self.manager->can_append(sequence(id), num_tokens);
          },
          nb::arg("id"), nb::arg("num_tokens"))
      .def(
          "append",
          [](ManagerObject& self, Id id, Count num_tokens) {
            return self.own().append(sequence(id), num_tokens);
          },
          nb::arg("id"), nb::arg("num_tokens"),
          "Slots for more tokens; False if blocks are missing.")
      .def(
          "num_blocks_to_append",
          [](const ManagerObject& self, Id id, Count num_tokens, int pool) {
            return self.manager->num_blocks_to_append(sequence(id), num_tokens, pool);
          },
          nb::arg("id"), nb::arg("num_tokens"), nb::arg("pool") = 0)
      .def(
          "commit",
          [](ManagerObject& self, Id id, nb::handle tokens) {
            self.own().commit(sequence(id), token_list("tokens", tokens));
          },
          nb::arg("id"), nb::arg("tokens"),
          "The first appended slots now hold K and V of these tokens.")
      .def(
          "commit_prompt",
          [](ManagerObject& self, Id id, Count num_tokens) {
            self.own().commit_prompt(sequence(id), num_tokens);
          },
          nb::arg("id"), nb::arg("num_tokens"), "The same with the next tokens of the prompt.")
      .def(
          "rollback",
          [](ManagerObject& self, Id id, Count num_tokens) {
            self.own().rollback(sequence(id), num_tokens);
          },
          nb::arg("id"), nb::arg("num_tokens"), "Gives up the last appended, not committed tokens.")
      .def(
          "fork", [](ManagerObject& self, Id id) { return self.own().fork(sequence(id)).value; },
          nb::arg("id"), "A second sequence with the same tokens; blocks are shared.")
      .def(
          "free", [](ManagerObject& self, Id id) { self.own().free(sequence(id)); }, nb::arg("id"))
      .def(
          "truncate",
          [](ManagerObject& self, Id id, Count num_tokens) {
            return self.own().truncate(sequence(id), num_tokens);
          },
          nb::arg("id"), nb::arg("num_tokens"),
          "Cuts to at most so many tokens; returns what is left.");
}

void add_sequence_calls(Manager& type) {
  using Id = const IdArgument&;
  using Count = std::int64_t;
  type.def(
          "can_swap_out",
          [](const ManagerObject& self, Id id) { return self.manager->can_swap_out(sequence(id)); },
          nb::arg("id"))
      .def(
          "swap_out", [](ManagerObject& self, Id id) { return self.own().swap_out(sequence(id)); },
          nb::arg("id"))
      .def(
          "can_swap_in",
          [](const ManagerObject& self, Id id, Count num_tokens) {
            return admit_status_name(self.manager->can_swap_in(sequence(id), num_tokens));
          },
          nb::arg("id"), nb::arg("num_tokens") = 0)
      .def(
          "swap_in", [](ManagerObject& self, Id id) { return self.own().swap_in(sequence(id)); },
          nb::arg("id"))
      .def(
          "num_blocks_to_swap_in",
          [](const ManagerObject& self, Id id, Count num_tokens, int pool) {
            return self.manager->num_blocks_to_swap_in(sequence(id), num_tokens, pool);
          },
          nb::arg("id"), nb::arg("num_tokens") = 0, nb::arg("pool") = 0)
      .def(
          "num_tokens",
          [](const ManagerObject& self, Id id) { return self.manager->num_tokens(sequence(id)); },
          nb::arg("id"), "Committed ones.")
      .def(
          "num_appended",
          [](const ManagerObject& self, Id id) { return self.manager->num_appended(sequence(id)); },
          nb::arg("id"), "And not committed.")
      .def(
          "is_swapped",
          [](const ManagerObject& self, Id id) { return self.manager->is_swapped(sequence(id)); },
          nb::arg("id"))
      .def(
          "block_table",
          [](const ManagerObject& self, Id id, int group) {
            return to_numpy(self.manager->block_table(sequence(id), group));
          },
          nb::arg("id"), nb::arg("group") = 0,
          "Blocks of a sequence; those of the host if swapped.");
}

void add_step_calls(Manager& type) {
  type.def(
          "take_copies",
          [](ManagerObject& self) {
            const CopyLists lists = self.own().take_copies();
            return nb::make_tuple(lists.ticket, copy_stage(lists.groups));
          },
          "(ticket, copies of every group): run them before the step, then complete_copies.")
      .def(
          "complete_copies",
          [](ManagerObject& self, std::uint64_t ticket) { self.own().complete_copies(ticket); },
          nb::arg("ticket"))
      .def("write_step", &write_step, nb::arg("group"), nb::arg("ids"),
           "The BatchView of the appended tokens of these sequences.")
      .def(
          "num_available_blocks",
          [](const ManagerObject& self, int pool) {
            return self.manager->num_available_blocks(pool);
          },
          nb::arg("pool") = 0, "Free or evictable.")
      .def("reset_prefix_cache", [](ManagerObject& self) { self.own().reset_prefix_cache(); })
      .def(
          "resize",
          [](ManagerObject& self, int pool, std::int64_t num_blocks) {
            return self.own().resize(pool, num_blocks);
          },
          nb::arg("pool"), nb::arg("num_blocks"))
      .def(
          "reserve",
          [](ManagerObject& self, std::int64_t num_sequences, std::int64_t num_tokens_each) {
            self.own().reserve(num_sequences, num_tokens_each);
          },
          nb::arg("num_sequences"), nb::arg("num_tokens_each"))
      .def("stats", &stats, "How full the cache is and what it has done.")
      .def("take_events", &take_events, "What became findable or was removed since the last call.")
      .def(
          "validate", [](const ManagerObject& self) { self.manager->validate(); },
          "Raises Error if its state contradicts itself.")
      .def("dump", [](const ManagerObject& self) { return self.manager->dump(); })
      .def_prop_ro("block_size",
                   [](const ManagerObject& self) { return self.manager->options().block_size; });
}

}  // namespace

void bind_block_manager(nb::module_& module) {
  Manager type(
      module, "BlockManager",
      "Which sequence holds which blocks: sharing, prefix cache, copy-on-write, swap.\n\n"
      "num_blocks: of the KvCache; block 0 belongs to nobody. pools and groups: lists of\n"
      "dicts with the fields of C++ (groups also AttentionSpecs), for models whose layers\n"
      "differ; by default there is one of each.\n"
      "Expected outcomes are values, misuse raises Error. One thread at a time.");
  type.def(nb::new_(&make_manager), nb::arg("num_blocks") = 0, nb::arg("block_size") = 16,
           nb::kw_only(), nb::arg("num_host_blocks") = 0, nb::arg("watermark_blocks") = 0,
           nb::arg("pools") = nb::none(), nb::arg("groups") = nb::none(),
           nb::arg("prefix_cache") = true, nb::arg("share_tails") = false,
           nb::arg("compare_tokens") = false, nb::arg("digest_bits") = 256,
           nb::arg("events") = false);
  add_admission(type);
  add_token_calls(type);
  add_sequence_calls(type);
  add_step_calls(type);
}

}  // namespace quire::python
