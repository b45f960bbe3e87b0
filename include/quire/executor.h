// SPDX-License-Identifier: Apache-2.0
// Threads of the caller's own, for a backend that shall start none.
#pragma once

#include "quire/export.h"

namespace quire {

// Implemented by the caller: an adapter to the thread pool that the program already has.
//
// A backend calls run() from the thread that called it, one run at a time, with up to num_threads()
// tasks. The tasks share one queue of work, so they may run all at once, some at a time, or one
// after the other on one thread: results are the same bits, only later. A task takes up to 256 KB
// of its thread's stack.
class QUIRE_API Executor {
 public:
  virtual ~Executor();

  // Constant, at least 1: the tasks that may run at once, the calling thread's included.
  virtual int num_threads() const noexcept = 0;

  // Calls task(context, i) once for every i of [0, num_tasks), on any threads, and returns when all
  // of them have returned. What tasks wrote must be visible then, as with any join. Must not throw:
  // there is no way back from half a run.
  virtual void run(int num_tasks, void (*task)(void* context, int index) noexcept,
                   void* context) noexcept = 0;
};

}  // namespace quire
