// SPDX-License-Identifier: Apache-2.0
#include "backends/openvino/model_graph.h"

#include <openvino/op/assign.hpp>
#include <openvino/op/broadcast.hpp>
#include <openvino/op/concat.hpp>
#include <openvino/op/constant.hpp>
#include <openvino/op/convert.hpp>
#include <openvino/op/gather.hpp>
#include <openvino/op/parameter.hpp>
#include <openvino/op/read_value.hpp>
#include <openvino/op/reshape.hpp>
#include <openvino/op/result.hpp>
#include <openvino/op/scaled_dot_product_attention.hpp>
#include <openvino/op/shape_of.hpp>
#include <openvino/op/transpose.hpp>
#include <openvino/op/unsqueeze.hpp>
#include <openvino/op/variadic_split.hpp>
#include <openvino/pass/manager.hpp>
#include <openvino/pass/sdpa_to_paged_attention.hpp>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace quire::openvino {
namespace {

namespace op = ov::op;
using Value = ov::Output<ov::Node>;

// Positions of the operation's inputs; those up to max_context_len are the same in all versions.
constexpr std::size_t kFirstInputs = 13;
constexpr std::size_t kSinksInput = 20;

std::shared_ptr<op::v0::Parameter> parameter(const char* name, ov::element::Type type,
                                             const ov::PartialShape& shape) {
  auto result = std::make_shared<op::v0::Parameter>(type, shape);
  result->set_friendly_name(name);
  result->output(0).set_names({name});
  return result;
}

std::shared_ptr<op::v0::Constant> numbers(const std::vector<std::int64_t>& values) {
  return op::v0::Constant::create(ov::element::i64, {values.size()}, values);
}

std::shared_ptr<op::v0::Constant> number(std::int64_t value) {
  return op::v0::Constant::create(ov::element::i64, {}, {value});
}

// One layer of a stateful language model from the projections on, in the form that the pass knows.
class StatefulLayer {
 public:
  explicit StatefulLayer(const ModelKey& key) : key_(key) {
    const std::int64_t q_size = std::int64_t{key.num_q_heads} * key.head_dim;
    const std::int64_t k_size = std::int64_t{key.num_kv_heads} * key.head_dim;
    const std::int64_t v_size = std::int64_t{key.num_kv_heads} * key.value_dim;
    embeds_ = parameter("inputs_embeds", ov::element::f32, {-1, -1, q_size + k_size + v_size});
    beams_ = parameter("beam_idx", ov::element::i32, {-1});
    split_ = std::make_shared<op::v1::VariadicSplit>(embeds_, number(2),
                                                     numbers({q_size, k_size, v_size}));
    batch_ = axis_of(embeds_, 0);
  }

  std::shared_ptr<ov::Model> make() {
    const auto positions = parameter("position_ids", ov::element::i64, {-1, -1});
    const auto mask = parameter("attention_mask", ov::element::i64, {-1, -1});
    const Value q = heads(0, key_.num_q_heads, key_.head_dim);
    const Value k = repeated(cached(heads(1, key_.num_kv_heads, key_.head_dim), "k"));
    const Value v = repeated(cached(heads(2, key_.num_kv_heads, key_.value_dim), "v"));
    const auto wide_mask = std::make_shared<op::v0::Unsqueeze>(
        std::make_shared<op::v0::Convert>(mask, ov::element::f32), numbers({1, 2}));
    const auto scale = op::v0::Constant::create(ov::element::f32, {}, {1.0F});
    const auto attention = std::make_shared<op::v13::ScaledDotProductAttention>(
        q, k, v, wide_mask, scale, /*causal=*/false);
    const auto rows = std::make_shared<op::v1::Transpose>(attention, numbers({0, 2, 1, 3}));
    const auto out = std::make_shared<op::v1::Reshape>(
        rows, numbers({0, 0, std::int64_t{key_.num_q_heads} * key_.value_dim}), true);
    return std::make_shared<ov::Model>(ov::ResultVector{std::make_shared<op::v0::Result>(out)},
                                       assigns_,
                                       ov::ParameterVector{embeds_, beams_, positions, mask});
  }

 private:
  static Value axis_of(const Value& tensor, std::int64_t axis) {
    return std::make_shared<op::v8::Gather>(std::make_shared<op::v3::ShapeOf>(tensor),
                                            numbers({axis}), number(0));
  }

  // [batch, num_heads, length, dim]
  Value heads(std::size_t part, std::int64_t num_heads, std::int64_t dim) const {
    const auto split = std::make_shared<op::v1::Reshape>(split_->output(part),
                                                         numbers({0, 0, num_heads, dim}), true);
    return std::make_shared<op::v1::Transpose>(split, numbers({0, 2, 1, 3}));
  }

  // Behind what the state holds.
  Value cached(const Value& fresh, const char* name) {
    const std::int64_t dim = fresh.get_partial_shape()[3].get_length();
    const auto variable = std::make_shared<op::util::Variable>(op::util::VariableInfo{
        ov::PartialShape{-1, key_.num_kv_heads, -1, dim}, ov::element::f32, name});
    const auto empty = std::make_shared<op::v3::Broadcast>(
        op::v0::Constant::create(ov::element::f32, {}, {0.0F}),
        std::make_shared<op::v0::Concat>(
            ov::OutputVector{batch_, numbers({key_.num_kv_heads}), numbers({0}), numbers({dim})},
            0));
    const auto past = std::make_shared<op::v8::Gather>(
        std::make_shared<op::v6::ReadValue>(empty, variable), beams_, number(0));
    const auto all = std::make_shared<op::v0::Concat>(ov::OutputVector{past, fresh}, 2);
    assigns_.push_back(std::make_shared<op::v6::Assign>(all, variable));
    return all;
  }

  // Each kv head as often as query heads read it.
  Value repeated(const Value& cache) const {
    const std::int64_t group = key_.num_q_heads / key_.num_kv_heads;
    if (group == 1) return cache;
    const std::int64_t dim = cache.get_partial_shape()[3].get_length();
    const auto shape = std::make_shared<op::v0::Concat>(
        ov::OutputVector{batch_, numbers({key_.num_kv_heads}), numbers({group}), axis_of(cache, 2),
                         numbers({dim})},
        0);
    const auto wide =
        std::make_shared<op::v3::Broadcast>(std::make_shared<op::v0::Unsqueeze>(cache, number(2)),
                                            shape, op::BroadcastType::BIDIRECTIONAL);
    return std::make_shared<op::v1::Reshape>(wide, numbers({0, key_.num_q_heads, -1, dim}), true);
  }

  const ModelKey& key_;
  std::shared_ptr<op::v0::Parameter> embeds_;
  std::shared_ptr<op::v0::Parameter> beams_;
  std::shared_ptr<ov::Node> split_;
  Value batch_;
  ov::SinkVector assigns_;
};

// The operation as the pass makes it, and the model that keeps its inputs alive.
struct MadeOperation {
  std::shared_ptr<ov::Model> model;
  std::shared_ptr<ov::Node> operation;
};

MadeOperation make_operation(const ModelKey& key) {
  MadeOperation made;
  made.model = StatefulLayer(key).make();
  ov::pass::Manager manager;
  manager.register_pass<ov::pass::SDPAToPagedAttention>();
  manager.run_passes(made.model);
  for (const std::shared_ptr<ov::Node>& node : made.model->get_ops()) {
    if (std::string_view(node->get_type_name()) == "PagedAttentionExtension") made.operation = node;
  }
  if (made.operation == nullptr || made.operation->get_input_size() < kFirstInputs) {
    fail(ErrorCode::kDevice, "openvino: SDPAToPagedAttention made no PagedAttention with at least ",
         kFirstInputs,
         " inputs: ", made.operation == nullptr ? 0 : made.operation->get_input_size());
  }
  return made;
}

ov::element::Type element_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ov::element::f32;
    case DType::kF16:
      return ov::element::f16;
    case DType::kBF16:
      return ov::element::bf16;
    default:
      break;
  }
  fail(ErrorCode::kInternal, "openvino: no tensors of ", dtype_name(dtype));
}

Value converted(const Value& value, ov::element::Type type) {
  if (value.get_element_type() == type) return value;
  return std::make_shared<op::v0::Convert>(value, type);
}

}  // namespace

std::shared_ptr<ov::Model> make_graph(const ModelKey& key) {
  using N = InputNames;
  const MadeOperation made = make_operation(key);
  const ov::element::Type computed = key.in_bf16 ? ov::element::bf16 : ov::element::f32;
  const ov::PartialShape list{-1};
  const ov::PartialShape scalar{};
  const ov::PartialShape cache = ov::PartialShape::dynamic(4);  // the plugin decides
  const auto rows = [](std::int64_t heads, std::int64_t dim) {
    return ov::PartialShape{-1, heads * dim};
  };
  const ov::ParameterVector parameters = {
      parameter(N::kQ, element_type(key.q_dtype), rows(key.num_q_heads, key.head_dim)),
      parameter(N::kK, computed, rows(key.num_kv_heads, key.head_dim)),
      parameter(N::kV, computed, rows(key.num_kv_heads, key.value_dim)),
      parameter(N::kKeyCache, ov::element::dynamic, cache),
      parameter(N::kValueCache, ov::element::dynamic, cache),
      parameter(N::kPastLens, ov::element::i32, list),
      parameter(N::kSubsequenceBegins, ov::element::i32, list),
      parameter(N::kBlockIndices, ov::element::i32, list),
      parameter(N::kBlockIndicesBegins, ov::element::i32, list),
      parameter(N::kScale, ov::element::f32, scalar),
      parameter(N::kWindow, ov::element::i32, scalar),
      parameter(N::kAlibi, ov::element::f32, list),
      parameter(N::kMaxContextLen, ov::element::i32, scalar),
  };
  ov::OutputVector inputs = made.operation->input_values();
  for (std::size_t i = 0; i < kFirstInputs; ++i) inputs[i] = parameters[i];
  inputs[0] = converted(inputs[0], computed);
  if (!key.sinks.empty()) {
    inputs.at(kSinksInput) = op::v0::Constant::create(
        ov::element::f32, {1, static_cast<std::size_t>(key.num_q_heads), 1, 1}, key.sinks);
  }
  const std::shared_ptr<ov::Node> operation = made.operation->clone_with_new_inputs(inputs);
  operation->get_rt_info() = made.operation->get_rt_info();  // numbers of heads and their sizes
  return std::make_shared<ov::Model>(
      ov::ResultVector{std::make_shared<op::v0::Result>(operation->output(0))}, parameters);
}

bool operation_has_sinks() {
  ModelKey key;
  key.num_q_heads = key.num_kv_heads = 1;
  key.head_dim = key.value_dim = 16;
  const MadeOperation made = make_operation(key);
  return made.operation->get_input_size() > kSinksInput &&
         made.operation->get_input_partial_shape(kSinksInput).rank() == 4;
}

}  // namespace quire::openvino
