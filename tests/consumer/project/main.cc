// SPDX-License-Identifier: Apache-2.0
// A program outside quire's tree, as a user writes it: it links the installed library, stores one
// key and attends to it, and meets an error by its type.
#include <quire/quire.hpp>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

// One sequence with one key: attention to it is its value, whatever the query.
bool attends() {
  quire::AttentionSpec spec;
  spec.num_q_heads = 2;
  spec.num_kv_heads = 1;
  spec.head_dim = spec.value_dim = 4;
  spec.q_dtype = spec.out_dtype = spec.kv.dtype = quire::DType::kF32;
  const auto backend = quire::choose_backend(spec);
  const quire::KvLayout layout = backend->preferred_layout(spec);
  spec.kv.layout = layout.id;
  const quire::BatchBounds bounds{
      .max_sequences = 1, .max_tokens = 1, .max_kv_len = 1, .max_total_kv_len = 1};
  quire::WorkspaceBuffer workspace(backend->memory(), backend->workspace(spec, bounds));
  const auto prepared = backend->make_prepared(spec, bounds, workspace.view());
  quire::KvCache cache(backend->memory(), spec, layout, {.num_layers = 1, .num_blocks = 2});

  const std::vector<std::int32_t> query_begins{0, 1}, lens{1}, blocks{1};
  const std::vector<std::int64_t> slots{spec.kv.block_size};  // the first of block 1
  quire::BatchView batch;
  batch.queries = quire::QueryRanges::packed(query_begins);
  batch.kv = {.lens = lens, .blocks = quire::BlockTables::padded(blocks, 1), .slots = slots};
  backend->prepare(*prepared, batch);

  const std::vector<float> q(8, 0.5F), k(4, 2.0F), v{1.0F, 2.0F, 3.0F, 4.0F};
  std::vector<float> out(8);
  backend->append(*prepared,
                  {quire::TensorView(k.data(), quire::DType::kF32, {1, 1, 4}),
                   quire::TensorView(v.data(), quire::DType::kF32, {1, 1, 4})},
                  cache.layer(0));
  backend->attend(*prepared, {}, quire::TensorView(q.data(), quire::DType::kF32, {1, 2, 4}),
                  cache.layer(0),
                  {quire::MutableTensorView(out.data(), quire::DType::kF32, {1, 2, 4}), {}});
  return out == std::vector<float>{1, 2, 3, 4, 1, 2, 3, 4};
}

bool refuses() {
  try {
    static_cast<void>(quire::make_backend("abacus"));
  } catch (const quire::Error& error) {
    return error.code() == quire::ErrorCode::kInvalidArgument;
  }
  return false;
}

}  // namespace

int main() {
  const std::string expected = std::to_string(QUIRE_VERSION_MAJOR) + "." +
                               std::to_string(QUIRE_VERSION_MINOR) + "." +
                               std::to_string(QUIRE_VERSION_PATCH);
  std::printf("headers %s, library %s\n", expected.c_str(), quire::version());
  return expected == quire::version() && attends() && refuses() ? 0 : 1;
}
