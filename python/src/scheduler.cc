// SPDX-License-Identifier: Apache-2.0
// Scheduler and ScheduledBatch. Requests are ints.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "batch_object.h"
#include "bindings.h"
#include "copies.h"
#include "dict_reader.h"
#include "fail.h"
#include "id_argument.h"
#include "manager_object.h"
#include "numpy_output.h"
#include "quire/scheduler.h"

namespace quire::python {
namespace {

struct SchedulerObject {
  std::shared_ptr<ManagerObject> manager;
  std::unique_ptr<Scheduler> scheduler;
  const ScheduledBatch* batch = nullptr;  // of the last schedule()
  std::uint64_t step = 0;                 // counts schedule()
};
using SchedulerPtr = std::shared_ptr<SchedulerObject>;

// The batch of one step; the scheduler reuses its memory for the next.
struct BatchOfStep {
  SchedulerPtr owner;
  std::uint64_t step = 0;

  const ScheduledBatch& get() const {
    require(owner->step == step && owner->batch != nullptr, "ScheduledBatch: of step ", step,
            ", but the scheduler is at step ", owner->step);
    return *owner->batch;
  }
};

// One word, as Python writes names.
std::string reason_name(FinishReason reason) {
  std::string name = finish_reason_name(reason);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

PreemptionOptions preemption_options(nb::handle source) {
  PreemptionOptions options;
  if (source.is_none()) return options;
  DictReader fields("preemption", source);
  options.allow_partial = fields.get("allow_partial", options.allow_partial);
  options.allow_swap = fields.get("allow_swap", options.allow_swap);
  options.allow_for_waiting = fields.get("allow_for_waiting", options.allow_for_waiting);
  options.token_seconds = fields.get("token_seconds", options.token_seconds);
  options.key_seconds = fields.get("key_seconds", options.key_seconds);
  options.byte_seconds = fields.get("byte_seconds", options.byte_seconds);
  options.token_bytes = fields.get("token_bytes", options.token_bytes);
  fields.require_all_known();
  return options;
}

SchedulerPtr make_scheduler(std::shared_ptr<ManagerObject> manager, std::int64_t max_tokens,
                            std::int64_t max_sequences, std::int64_t max_chunk,
                            std::int64_t max_cross_tokens, std::int64_t max_length,
                            std::int64_t max_total_length, int aging_steps, int prefix_window,
                            bool wait_for_shared, nb::handle preemption) {
  SchedulerOptions options;
  options.max_tokens = max_tokens;
  options.max_sequences = max_sequences;
  options.max_chunk = max_chunk;
  options.max_cross_tokens = max_cross_tokens;
  options.max_length = max_length;
  options.max_total_length = max_total_length;
  options.aging_steps = aging_steps;
  options.prefix = {.window = prefix_window, .wait_for_shared = wait_for_shared};
  options.preemption = preemption_options(preemption);
  require(!manager->is_driven, "manager: another scheduler drives it");
  require(manager->manager->stats().num_sequences == 0,
          "manager: has sequences that no scheduler knows");
  auto object = std::make_shared<SchedulerObject>();
  object->scheduler = std::make_unique<Scheduler>(options, manager->manager->options());
  object->manager = std::move(manager);
  object->manager->is_driven = true;
  return object;
}

std::uint64_t submit(const SchedulerPtr& self, const Prompt& prompt, std::int64_t max_new_tokens,
                     std::int32_t priority, std::optional<double> deadline,
                     std::int64_t num_cross_tokens) {
  Request request;
  request.prompt = prompt;
  request.max_new_tokens = max_new_tokens;
  request.priority = priority;
  request.num_cross_tokens = num_cross_tokens;
  if (deadline.has_value()) {
    constexpr double kLargest = 9e9;  // seconds: 64 bits of nanoseconds hold a little more
    require(std::isfinite(*deadline) && std::abs(*deadline) < kLargest,
            "deadline: needs seconds as time.monotonic() gives them, has ", *deadline);
    request.deadline = std::chrono::nanoseconds(static_cast<std::int64_t>(*deadline * 1e9));
  }
  return self->scheduler->submit(std::move(request)).value;
}

BatchOfStep schedule(const SchedulerPtr& self) {
  self->batch = &self->scheduler->schedule(*self->manager->manager);
  return {self, ++self->step};
}

nb::dict step_result(const StepResult& result) {
  nb::dict dict;
  dict["num_tokens"] = result.num_tokens;
  dict["num_sequences"] = result.num_sequences;
  nb::list ready;
  for (const ReadyRequest& one : result.ready) {
    nb::dict row;
    row["id"] = one.id.value;
    row["row"] = one.row;
    row["num_drafts"] = one.num_drafts;
    ready.append(row);
  }
  dict["ready"] = ready;
  nb::list finished;
  for (const FinishedRequest& one : result.finished) {
    nb::dict row;
    row["id"] = one.id.value;
    row["reason"] = reason_name(one.reason);
    row["num_new_tokens"] = one.num_new_tokens;
    row["detail"] = one.detail;
    finished.append(row);
  }
  dict["finished"] = finished;
  return dict;
}

std::vector<Token> tokens_of(const char* name, nb::handle source) {
  if (PyIndex_Check(source.ptr()) != 0) {
    const nb::object list = nb::make_tuple(nb::borrow(source));
    Numbers<Token> one;
    one.read(name, list);
    return one.host();
  }
  Numbers<Token> numbers;
  numbers.read(name, source);
  require(!numbers.on_device(), name, ": on a device");
  return numbers.host();
}

nb::dict stats(const SchedulerPtr& self) {
  const SchedulerStats stats = self->scheduler->stats();
  nb::dict dict;
  dict["num_steps"] = stats.num_steps;
  dict["num_submitted"] = stats.num_submitted;
  nb::dict finished;
  for (int i = 0; i < kNumFinishReasons; ++i) {
    finished[reason_name(static_cast<FinishReason>(i)).c_str()] =
        stats.num_finished[static_cast<std::size_t>(i)];
  }
  dict["num_finished"] = finished;
  dict["num_tokens"] = stats.num_tokens;
  dict["num_lost_tokens"] = stats.num_lost_tokens;
  dict["num_recomputes"] = stats.num_recomputes;
  dict["num_partial_releases"] = stats.num_partial_releases;
  dict["num_swaps"] = stats.num_swaps;
  dict["num_preemptions"] = stats.num_preemptions();
  dict["num_drafts"] = stats.num_drafts;
  dict["num_accepted_drafts"] = stats.num_accepted_drafts;
  dict["num_waiting"] = stats.num_waiting;
  dict["num_running"] = stats.num_running;
  dict["num_paused"] = stats.num_paused;
  dict["num_swapped"] = stats.num_swapped;
  return dict;
}

nb::list batch_sequences(const BatchOfStep& self) {
  nb::list result;
  for (const ScheduledSequence& one : self.get().sequences()) {
    nb::dict row;
    row["request"] = one.request.value;
    row["sequence"] = one.sequence.value;
    row["first_position"] = one.first_position;
    row["first_row"] = one.first_row;
    row["num_tokens"] = one.num_tokens;
    row["num_drafts"] = one.num_drafts;
    row["num_cross_rows"] = one.num_cross_rows;
    row["is_last_chunk"] = one.is_last_chunk;
    result.append(row);
  }
  return result;
}

void bind_batch_of_step(nb::module_& module) {
  nb::class_<BatchOfStep>(module, "ScheduledBatch",
                          "The work of one step. Valid until the next schedule().")
      .def_prop_ro("empty", [](const BatchOfStep& self) { return self.get().empty(); })
      .def_prop_ro("num_tokens", [](const BatchOfStep& self) { return self.get().num_tokens(); })
      .def_prop_ro("num_cross_rows",
                   [](const BatchOfStep& self) { return self.get().num_cross_rows(); })
      .def_prop_ro(
          "tokens", [](const BatchOfStep& self) { return to_numpy(self.get().tokens()); },
          "[num_tokens] int32")
      .def_prop_ro(
          "positions", [](const BatchOfStep& self) { return to_numpy(self.get().positions()); },
          "[num_tokens] int32")
      .def_prop_ro("sequences", &batch_sequences,
                   "One dict per request: request, sequence, first_position, first_row, "
                   "num_tokens, num_drafts, num_cross_rows, is_last_chunk.")
      .def_prop_ro(
          "copies",
          [](const BatchOfStep& self) {
            nb::list stages;
            for (const CopyStage& stage : self.get().copies()) {
              stages.append(copy_stage(stage.groups));
            }
            return stages;
          },
          "Stages, each a list with one dict per group (on_device, to_host, to_device, "
          "on_host); to be run in order before anything is stored.")
      .def(
          "view",
          [](const BatchOfStep& self, int group) {
            return BatchObject{BatchArrays(self.get().view(group))};
          },
          nb::arg("group") = 0, "The BatchView of the layers of a group.");
}

void add_request_calls(nb::class_<SchedulerObject>& type) {
  type.def_prop_ro("has_batch",
                   [](const SchedulerPtr& self) { return self->scheduler->has_batch(); })
      .def(
          "extend",
          [](const SchedulerPtr& self, const IdArgument& id, nb::handle tokens, nb::handle drafts) {
            self->scheduler->extend({id.value()}, tokens_of("tokens", tokens),
                                    tokens_of("drafts", drafts));
          },
          nb::arg("id"), nb::arg("tokens"), nb::arg("drafts") = nb::make_tuple(),
          "Adds a token or several, and guesses of those that follow.")
      .def(
          "finish",
          [](const SchedulerPtr& self, const IdArgument& id) {
            self->scheduler->finish({id.value()});
          },
          nb::arg("id"), "It has all its tokens.")
      .def(
          "fork",
          [](const SchedulerPtr& self, const IdArgument& id) {
            return self->scheduler->fork({id.value()}).value;
          },
          nb::arg("id"), "A second request with the same tokens so far.")
      .def(
          "new_tokens",
          [](const SchedulerPtr& self, const IdArgument& id) {
            return to_numpy(self->scheduler->new_tokens({id.value()}));
          },
          nb::arg("id"))
      .def("stats", &stats)
      .def("validate", [](const SchedulerPtr& self) { self->scheduler->validate(); });
}

}  // namespace

void bind_scheduler(nb::module_& module) {
  bind_batch_of_step(module);
  nb::class_<SchedulerObject> type(
      module, "Scheduler",
      "Continuous batching over a BlockManager: who runs in the next step.\n\n"
      "    id = scheduler.submit(prompt, max_new_tokens=100)\n"
      "    batch = scheduler.schedule()\n"
      "    ... run batch.copies, compute ...\n"
      "    for ready in scheduler.commit(batch)['ready']:\n"
      "        scheduler.extend(ready['id'], choose_token(ready['row']))\n\n"
      "The manager must serve nobody else. preemption: a dict with fields of C++.");
  type.def(nb::new_(&make_scheduler), nb::arg("manager"), nb::kw_only(),
           nb::arg("max_tokens") = 2048, nb::arg("max_sequences") = 256, nb::arg("max_chunk") = 0,
           nb::arg("max_cross_tokens") = 0, nb::arg("max_length") = 0,
           nb::arg("max_total_length") = 0, nb::arg("aging_steps") = 256,
           nb::arg("prefix_window") = 1, nb::arg("wait_for_shared") = false,
           nb::arg("preemption") = nb::none())
      .def("submit", &submit, nb::arg("prompt"), nb::kw_only(), nb::arg("max_new_tokens") = 1,
           nb::arg("priority") = 0, nb::arg("deadline") = nb::none(),
           nb::arg("num_cross_tokens") = 0,
           "Takes part from the next schedule() on. deadline: seconds of time.monotonic().")
      .def(
          "cancel",
          [](const SchedulerPtr& self, const IdArgument& id) {
            self->scheduler->cancel({id.value()});
          },
          nb::arg("id"))
      .def_prop_ro("num_unfinished",
                   [](const SchedulerPtr& self) { return self->scheduler->num_unfinished(); })
      .def("schedule", &schedule, "The ScheduledBatch of the next step.")
      .def(
          "commit",
          [](const SchedulerPtr& self, const BatchOfStep& batch) {
            require(batch.owner == self, "commit: a batch of another scheduler");
            return step_result(self->scheduler->commit(batch.get()));
          },
          nb::arg("batch"),
          "{'num_tokens', 'num_sequences', 'ready': [{id, row, num_drafts}], "
          "'finished': [{id, reason, num_new_tokens, detail}]}")
      .def(
          "abandon",
          [](const SchedulerPtr& self, const BatchOfStep& batch,
             std::optional<std::size_t> num_stages) {
            require(batch.owner == self, "abandon: a batch of another scheduler");
            const ScheduledBatch& of_step = batch.get();
            self->scheduler->abandon(of_step, num_stages.value_or(of_step.copies().size()));
          },
          nb::arg("batch"), nb::arg("num_stages") = nb::none(),
          "Only the copies (of the first num_stages) have run: the step is to come again.");
  add_request_calls(type);
}

}  // namespace quire::python
