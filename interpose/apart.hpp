// A group's compressed calls on streams of their communicators' own (collectives/own_streams.hpp), so that in a group
// of several communicators none waits for another where NCCL would not have it wait; and the streams of each one's
// calls joined before and after, as NCCL joins them.
#pragma once

#include <memory>
#include <span>

#include "interpose/group.hpp"

namespace zipccl::interpose {

// As EligibleCalls says.
std::unique_ptr<EligibleCalls::Apart> make_apart(std::span<EligibleAllGather> all_gathers,
                                                 std::span<EligibleTransfer> transfers,
                                                 std::span<const NativeStream> native);

}  // namespace zipccl::interpose
