// Which processors the threads that compute are bound to. Without a binding the system moves them.
#pragma once

#include <vector>

namespace headrace {

// From now on thread number i of the pool (0 is whoever calls it) stays on cpus[i], and on from the
// first again where there are more threads; nothing changes for threads already bound when the list
// is empty. Throws std::invalid_argument when a processor cannot be had, or the system cannot bind.
void bind_threads(const std::vector<int>& cpus);

// Where the calling thread stands in that binding. Cheap when nothing changed.
void bind_this_thread(int index);

}  // namespace headrace
