// SPDX-License-Identifier: Apache-2.0
// Prompt: tokens and the content keys of their blocks.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "batch_arrays.h"
#include "bindings.h"
#include "fail.h"
#include "numpy_output.h"
#include "quire/prompt.h"

namespace quire::python {
namespace {

std::string text_or_bytes(const char* name, nb::handle source) {
  if (PyBytes_Check(source.ptr()) != 0) {
    const nb::bytes bytes = nb::cast<nb::bytes>(source);
    return {bytes.c_str(), bytes.size()};
  }
  std::string text;
  require(nb::try_cast(source, text), name, ": needs text or bytes");
  return text;
}

using ExtraKeys = std::vector<std::tuple<std::int64_t, std::int64_t, nb::object>>;

Prompt make_prompt(nb::handle tokens, int block_size, nb::handle salt, nb::handle adapter,
                   const ExtraKeys& extra_keys, bool hashed) {
  Numbers<Token> numbers;
  numbers.read("tokens", tokens);
  require(!numbers.on_device(), "tokens: on a device");
  if (!hashed) return Prompt::unhashed(numbers.host(), block_size);
  const std::string salt_bytes = text_or_bytes("salt", salt);
  const std::string adapter_name = text_or_bytes("adapter", adapter);
  std::vector<std::string> contents;
  contents.reserve(extra_keys.size());  // views into them follow
  std::vector<ExtraKey> keys;
  for (const auto& [first, count, content] : extra_keys) {
    contents.push_back(text_or_bytes("extra_keys", content));
    keys.push_back({first, count, contents.back()});
  }
  return {numbers.host(), block_size,
          PrefixScope{.salt = salt_bytes, .adapter = adapter_name, .extra_keys = keys}};
}

nb::bytes digest_bytes(const Digest& digest) {
  return nb::bytes(digest.bytes.data(), digest.bytes.size());
}

}  // namespace

void bind_prompt(nb::module_& module) {
  nb::class_<Prompt>(
      module, "Prompt",
      "Tokens and the SHA-256 keys of their blocks, which the prefix cache looks up.\n\n"
      "Only prompts of equal salt and adapter share blocks. extra_keys: (first_token, num_tokens,\n"
      "digest) of what stands at placeholder tokens. hashed=False: it neither finds cached blocks\n"
      "nor leaves any.")
      .def(
          "__init__",
          [](Prompt* self, nb::handle tokens, int block_size, nb::handle salt, nb::handle adapter,
             const ExtraKeys& extra_keys, bool hashed) {
            new (self) Prompt(make_prompt(tokens, block_size, salt, adapter, extra_keys, hashed));
          },
          nb::arg("tokens"), nb::arg("block_size") = 16, nb::kw_only(), nb::arg("salt") = "",
          nb::arg("adapter") = "", nb::arg("extra_keys") = ExtraKeys(), nb::arg("hashed") = true)
      .def(
          "extended",
          [](const Prompt& self, nb::handle more) {
            Numbers<Token> numbers;
            numbers.read("more", more);
            require(!numbers.on_device(), "more: on a device");
            return self.extended(numbers.host());
          },
          nb::arg("more"), "This prompt and more tokens; hashes only the new blocks.")
      .def_prop_ro("tokens", [](const Prompt& self) { return to_numpy(self.tokens()); })
      .def_prop_ro("num_tokens", &Prompt::num_tokens)
      .def_prop_ro("block_size", &Prompt::block_size)
      .def_prop_ro("is_hashed", &Prompt::is_hashed)
      .def_prop_ro("num_full_blocks", &Prompt::num_full_blocks)
      .def("root", [](const Prompt& self) { return digest_bytes(self.root()); })
      .def(
          "key",
          [](const Prompt& self, std::int64_t block) { return digest_bytes(self.key(block)); },
          nb::arg("block"), "The SHA-256 that names a full block and all before it.");
}

}  // namespace quire::python
