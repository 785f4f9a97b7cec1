// Which of the process's file descriptors are the switcher's sockets, for a forked child to close: kept open there,
// they would hide the parent's death from its peers.
//
// A descriptor is remembered from its creation to just before its close. No lock and no allocation, so that a fork
// handler may look. Descriptors from 2^20 up are not remembered; Linux gives out the lowest free one.
#pragma once

namespace zipccl::switcher::descriptors {

void remember(int descriptor);

// False if the descriptor is not the caller's any more, because close_all() has run in this process.
bool forget(int descriptor);

// Closes what is remembered and forgets it. Only for a forked child, before it opens descriptors of its own;
// async-signal-safe.
void close_all();

}  // namespace zipccl::switcher::descriptors
