// SPDX-License-Identifier: Apache-2.0
// Batches from lists of token slots, as transformers and SGLang keep them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include "batch_object.h"
#include "bindings.h"
#include "fail.h"
#include "quire/batch_convert.h"

namespace quire::python {
namespace {

// The arrays behind a TokenSlotMetadata.
struct TokenSlots {
  Numbers<std::int32_t> query_begins;
  Numbers<std::int32_t> kv_begins;
  Numbers<std::int64_t> read_slots;
  Numbers<std::int64_t> write_slots;

  TokenSlots(nb::handle query_begins_, nb::handle kv_begins_, nb::handle read_slots_,
             nb::handle write_slots_) {
    query_begins.read("query_begins", query_begins_);
    kv_begins.read("kv_begins", kv_begins_);
    if (!read_slots_.is_none()) read_slots.read("read_slots", read_slots_);
    if (!write_slots_.is_none()) write_slots.read("write_slots", write_slots_);
  }

  TokenSlotMetadata view() const {
    return {.query_begins = query_begins.view(),
            .kv_begins = kv_begins.view(),
            .read_slots = read_slots.view(),
            .write_slots = write_slots.view()};
  }
};

BatchObject from_slots(nb::handle query_begins, nb::handle kv_begins, nb::handle read_slots,
                       nb::handle write_slots, int block_size) {
  const TokenSlots slots(query_begins, kv_begins, read_slots, write_slots);
  BatchStorage storage;
  return {BatchArrays(from_token_slots(slots.view(), block_size, storage))};
}

int block_size_of(nb::handle query_begins, nb::handle kv_begins, nb::handle read_slots,
                  nb::handle write_slots, int max_block_size) {
  const TokenSlots slots(query_begins, kv_begins, read_slots, write_slots);
  BatchStorage storage;
  return aligned_block_size(slots.view(), max_block_size, storage);
}

}  // namespace

void bind_convert(nb::module_& module) {
  module.def(
      "from_token_slots", &from_slots, nb::arg("query_begins"), nb::arg("kv_begins"),
      nb::arg("read_slots").none(), nb::arg("write_slots").none() = nb::none(),
      nb::arg("block_size") = 1,
      "The BatchView of keys named by their slots.\n\n"
      "query_begins, kv_begins: [num_sequences + 1] offsets (cu_seq_lens_q, cu_seq_lens_k).\n"
      "read_slots: [kv_begins[-1]] the slot of every key (read_index); None: all keys are\n"
      "    new ones, in write_slots.\n"
      "write_slots: [num_new_kv_tokens] where new K and V go (write_index), -1: nowhere.\n"
      "block_size: above 1 only if the slots prove it, see aligned_block_size.");
  module.def("aligned_block_size", &block_size_of, nb::arg("query_begins"), nb::arg("kv_begins"),
             nb::arg("read_slots").none(), nb::arg("write_slots").none() = nb::none(),
             nb::arg("max_block_size") = 256,
             "The largest power of two up to max_block_size that the slots prove.");
}

}  // namespace quire::python
