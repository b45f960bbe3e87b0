// SPDX-License-Identifier: Apache-2.0
// Long lines for terminals.
#pragma once

#include <cstddef>
#include <string>

namespace quire::cli {

// Prints the words of `text` on lines of at most 100 columns that begin with `indent` spaces.
void print_wrapped(const std::string& text, std::size_t indent);

}  // namespace quire::cli
