// SPDX-License-Identifier: Apache-2.0
// Deliberate breakages of KV management, to prove that the tests would notice them.
//
// In the library is_broken() is a constant false and leaves no code behind. The mutation test
// compiles these sources once more with QUIRE_KV_MUTANTS and breaks one thing at a time;
// tests/model/MUTANTS.md lists what each one does and which check finds it.
#pragma once

namespace quire {

enum class Mutant {
  kNone,
  kForkKeepsCount,        // fork shares the last block without counting it
  kRollbackLeaks,         // rollback forgets to release a block
  kFreesFrontToBack,      // parents enter the eviction list before their children
  kEvictsNewest,          // the most recently used block goes first
  kUnpinnedGoesLast,      // a block kept alive by a copy is queued behind its parent
  kKeepsKeyOfEvicted,     // an evicted block stays findable
  kKeepsTwoUnreferenced,  // a second unreferenced copy of one content is kept
  kWritesSharedBlock,     // no copy before a shared block is written
  kForgetsCopy,           // a new block, but its content is never copied
  kChainsCopies,          // a copy reads a block that the same list writes
  kUnpinsOnTake,          // blocks of a copy are free before the copy has run
  kIgnoresSalt,
  kIgnoresAdapter,
  kIgnoresExtraKeys,
  kIgnoresParent,  // a block is named by its own tokens alone
  kSkipsTokenCompare,
  kMatchesWholePrompt,   // nothing is left to compute
  kReleasesWindowEarly,  // the last block that a window still touches is released
  kIgnoresWatermark,
  kSwapsInReverse,  // swap in restores the blocks in another order
  kResetKeepsLive,  // blocks in use survive a reset of the prefix cache
};

#ifdef QUIRE_KV_MUTANTS
inline Mutant active_mutant = Mutant::kNone;
inline bool is_broken(Mutant mutant) noexcept {
  return active_mutant == mutant;
}
#else
constexpr bool is_broken(Mutant) noexcept {
  return false;
}
#endif

}  // namespace quire
