// SPDX-License-Identifier: Apache-2.0
#include "attention/batch_packing.h"

#include "attention/batch_structure.h"

namespace quire {

ArrayView<std::int32_t> pack_queries(const char* client, const BatchView& batch,
                                     BatchStorage& storage) {
  const std::int64_t num_sequences = batch.num_sequences();
  std::int32_t* offsets = resize_array(storage.query_begins, num_sequences + 1);
  std::int32_t row = 0;
  for (std::int64_t s = 0; s < num_sequences; ++s) {
    offsets[s] = row;
    const std::int64_t q_len = q_len_of(batch.queries, s);
    require(q_len == 0 || batch.queries.begins[s] == row, client,
            " packs queries without gaps: sequence ", s, ": query rows begin at ",
            batch.queries.begins[s], ", must be ", row);
    row = narrow(row + q_len);
  }
  offsets[num_sequences] = row;
  return storage.query_begins;
}

ArrayView<std::int32_t> one_query_each(std::int64_t num_sequences, BatchStorage& storage) {
  require(num_sequences < kInt32Max, "sequences are ", num_sequences, ", must be < ", kInt32Max);
  std::int32_t* offsets = resize_array(storage.query_begins, num_sequences + 1);
  for (std::int64_t s = 0; s <= num_sequences; ++s) offsets[s] = narrow(s);
  return storage.query_begins;
}

void refuse_tree_mask(const char* client, const BatchView& batch) {
  const TreeMask& tree = batch.tree_mask;
  require(tree.depths.empty(), client, " metadata has no tree depths: the batch has ",
          tree.depths.size);
  for (std::int64_t s = 0; s < tree.begins.size; ++s) {
    require(tree.begins[s] < 0, client, " metadata has no tree mask: sequence ", s,
            ": tree mask begins at byte ", tree.begins[s]);
  }
}

}  // namespace quire
