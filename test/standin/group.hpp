// Groups of the calling thread, and the launch of operations onto streams.
#pragma once

#include <functional>
#include <memory>

#include "test/standin/collectives.hpp"

namespace standin {

// Work that creates a communicator: it runs at once outside a group, else at the outermost group's end, together
// with the group's other creations. `undo` runs if it, or something else in the group, fails.
struct Creation {
  std::function<void()> run;
  std::function<void()> undo;
};

void group_start();
// Ends the innermost group. The outermost one creates, then launches; an error noted in it, which is returned, or a
// creation's, which is thrown, drops everything. A simulation launches nothing.
ncclResult_t group_end(bool simulate);

// Both act at once outside a group. An operation has been checked; zero values of a collective are dropped here.
void submit(Operation operation);
ncclResult_t create(Creation creation);
// A nonblocking communicator's creation, started by `start`; gives ncclInProgress, at the group's end in a group.
ncclResult_t create_in_background(std::function<void()> start);

// Notes a call's error, so that the group it is in fails. Returns the error.
ncclResult_t note(ncclResult_t result);

}  // namespace standin
