// SPDX-License-Identifier: Apache-2.0
// Specs and batches of any bytes are accepted or refused with an Error, and what is accepted can be
// walked, converted and planned without reading outside of it.
//
// Under Clang a libFuzzer target. Elsewhere, and with QUIRE_FUZZ_REPLAY, a program that runs the
// files and folders named by its arguments.
#include <cstddef>
#include <cstdint>
#include <string>

#include "attention/validate.h"
#include "metadata_checks.h"
#include "metadata_input.h"
#include "quire/attention_spec.h"
#include "quire/batch_convert.h"
#include "quire/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace quire::fuzz {
namespace {

// A batch that nobody validated: converters check all that they read.
void convert_to_clients(const BatchView& batch, int block_size) {
  BatchStorage storage;
  try_convert([&] { to_vllm(batch, block_size, storage); });
  try_convert([&] { to_flashinfer(batch, block_size, storage); });
  try_convert([&] { to_openvino(batch, block_size, storage); });
  try_convert([&] { to_token_slots(batch, block_size, storage); });
  try_convert([&] { to_sglang(batch, block_size, storage); });
  try_convert([&] {
    BatchSplit split;
    split_batch(batch, 1, NewKvRows::kQueries, split);
  });
}

// The same arrays as if a client had brought them.
void convert_from_clients(const MetadataInput& input, int block_size) {
  BatchStorage storage;
  const BlockTables& blocks = input.batch.kv.blocks;
  try_convert([&] {
    from_vllm({.query_start_loc = input.query_begins.view,
               .seq_lens = input.lens.view,
               .block_table = input.indices.view,
               .block_table_stride = blocks.row_stride,
               .slot_mapping = input.slots.view},
              block_size);
  });
  try_convert([&] {
    from_flashinfer({.qo_indptr = input.query_begins.view,
                     .kv_indptr = input.index_begins.view,
                     .kv_indices = input.indices.view,
                     .last_page_len = input.lens.view},
                    block_size, NewKvRows::kQueries, storage);
  });
  try_convert([&] {
    from_openvino({.past_lens = input.lens.view,
                   .subsequence_begins = input.query_begins.view,
                   .block_indices = input.indices.view,
                   .block_indices_begins = input.index_begins.view,
                   .max_context_len = 1 << 20},
                  block_size, storage);
  });
  const TokenSlotMetadata token_slots{.query_begins = input.query_begins.view,
                                      .kv_begins = input.index_begins.view,
                                      .read_slots = input.rows.view,
                                      .write_slots = input.slots.view};
  try_convert([&] { from_token_slots(token_slots, block_size, storage); });
  try_convert([&] { aligned_block_size(token_slots, 64, storage); });
  const SglangMetadata sglang{.req_to_token = input.indices.view,
                              .req_to_token_stride = blocks.row_stride,
                              .req_pool_indices = input.rows.view,
                              .seq_lens = input.tree_begins.view,
                              .extend_seq_lens = input.lens.view,
                              .out_cache_loc = input.slots.view};
  try_convert([&] { from_sglang(sglang, block_size, storage); });
  try_convert([&] { aligned_block_size(sglang, 64, storage); });
}

// Why validation refused the input; empty if it did not.
std::string run(const std::uint8_t* data, std::size_t size) {
  ByteReader bytes(data, size);
  const MetadataInput input(bytes);
  convert_to_clients(input.batch, input.spec.kv.block_size);
  convert_from_clients(input, input.spec.kv.block_size);
  BatchFacts facts;
  try {
    validate(input.spec);
    validate_bounds(input.spec, input.bounds);
    facts = validate_exactly(input.spec, input.bounds, input.batch);
  } catch (const Error& error) {
    expect(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  check_facts(input.spec, input.batch, facts);
  check_rows(input.spec, input.batch);
  check_converters(input.spec, input.batch);
  check_split(input.spec, input.batch);
  check_plan(input.spec, input.bounds, input.batch);
  return {};
}

}  // namespace
}  // namespace quire::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  quire::fuzz::run(data, size);
  return 0;
}

#if !defined(__clang__) || defined(QUIRE_FUZZ_REPLAY)

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

namespace {

// Of a seed the name says whether it is refused; files of other names may be either.
bool replay(const std::filesystem::path& file, bool is_seed) {
  std::ifstream stream(file, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(stream)),
                                std::istreambuf_iterator<char>());
  const std::vector<std::uint8_t> data(bytes.begin(), bytes.end());
  const std::string reason = quire::fuzz::run(data.data(), data.size());
  const std::string name = file.filename().string();
  std::cout << name << ": " << (reason.empty() ? "accepted" : reason) << "\n";
  return !is_seed || name.starts_with("refused_") == !reason.empty();
}

}  // namespace

// Folders hold seeds. Fails if there is no file, or a seed is not what it is called.
int main(int argc, char** argv) {
  int num_files = 0;
  int num_wrong = 0;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      replay(argv[i], false);
      ++num_files;
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      num_wrong += replay(entry.path(), true) ? 0 : 1;
      ++num_files;
    }
  }
  std::cout << "replayed files: " << num_files << ", not as named: " << num_wrong << "\n";
  return num_files > 0 && num_wrong == 0 ? 0 : 1;
}

#endif
