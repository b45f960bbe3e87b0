// SPDX-License-Identifier: Apache-2.0
// A device backend that exists only in tests: it proves that the API carries a device before there
// is one. Its memory is apart (fake_memory.h), its work runs later on streams, its metadata may be
// resident on the device within the declared bounds, and what it finds wrong there comes out of
// poll(). The arithmetic is the portable CPU backend's, on the host memory behind.
#pragma once

#include <memory>

#include "quire/backend.h"

namespace quire::testing {

std::unique_ptr<AttentionBackend> make_fake_device();

}  // namespace quire::testing
