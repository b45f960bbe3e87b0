// SPDX-License-Identifier: Apache-2.0
// Room in a vector before a change that must not throw, growing as push_back does: vector::reserve
// alone grows to the exact size, so that a table which grows block by block would move every time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace quire {

template <class T>
void reserve_more(std::vector<T>& vector, std::size_t num_more) {
  const std::size_t needed = vector.size() + num_more;
  if (needed > vector.capacity()) vector.reserve(std::max(needed, 2 * vector.capacity()));
}

}  // namespace quire
