// SPDX-License-Identifier: Apache-2.0
// These tests call PyTorch themselves, before any plug-in is loaded.
#include "base/hidden_tiles.h"

namespace quire::testing {
namespace {

[[maybe_unused]] const bool kKept = keep_onednn_from_hidden_tiles();

}  // namespace
}  // namespace quire::testing
