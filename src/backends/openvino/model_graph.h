// SPDX-License-Identifier: Apache-2.0
// The graph around one PagedAttention operation.
//
// The operation's class is in no public header, so OpenVINO itself makes one: a small stateful
// model goes through the public pass SDPAToPagedAttention, as a language model would, and the
// operation found in the result is cloned onto inputs of ours. Inputs that we do not know stay as
// the pass set them: off.
#pragma once

#include <memory>
#include <openvino/core/model.hpp>

#include "backends/openvino/paged_attention.h"

namespace quire::openvino {

// Names of the inputs, in the order of Call.
struct InputNames {
  static constexpr const char* kQ = "q";
  static constexpr const char* kK = "k";
  static constexpr const char* kV = "v";
  static constexpr const char* kKeyCache = "key_cache.0";
  static constexpr const char* kValueCache = "value_cache.0";
  static constexpr const char* kPastLens = "past_lens";
  static constexpr const char* kSubsequenceBegins = "subsequence_begins";
  static constexpr const char* kBlockIndices = "block_indices";
  static constexpr const char* kBlockIndicesBegins = "block_indices_begins";
  static constexpr const char* kScale = "scale";
  static constexpr const char* kWindow = "sliding_window";
  static constexpr const char* kAlibi = "alibi_slopes";
  static constexpr const char* kMaxContextLen = "max_context_len";
};

std::shared_ptr<ov::Model> make_graph(const ModelKey& key);

// Whether the operation of this version of OpenVINO has an input for sinks.
bool operation_has_sinks();

}  // namespace quire::openvino
